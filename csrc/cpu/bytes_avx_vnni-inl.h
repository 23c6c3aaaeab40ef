// Products of groups of four int8 by AVX-VNNI. Included inside a namespace, after the vectors.

constexpr int kSumsWidth = 8;                // columns of one `Sums`
constexpr int kSumsRows = 6, kSumsVecs = 2;  // rows and sums that fit the registers

using Sums = __m256i;
using ByteVec = __m256i;

inline ByteVec load_bytes(const uint8_t* weight) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
}

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm256_dpbusd_avx_epi32(acc, weight, _mm256_set1_epi32(four));
}

inline Sums no_sums() { return _mm256_setzero_si256(); }
inline void store_sums(int32_t* out, Sums a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), a);
}

// Whether products are those of weights + 128, so that 128 times the sum of x must be taken away.
constexpr bool kIsBiased = true;
