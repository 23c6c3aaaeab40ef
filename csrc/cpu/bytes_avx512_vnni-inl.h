// Products of groups of four int8 by AVX512_VNNI. Included inside a namespace, after the vectors.

constexpr int kSumsWidth = 16;               // columns of one `Sums`
constexpr int kSumsRows = 6, kSumsVecs = 4;  // rows and sums that fit the registers

using Sums = __m512i;
using ByteVec = __m512i;

inline ByteVec load_bytes(const uint8_t* weight) { return _mm512_loadu_si512(weight); }

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(acc, weight, _mm512_set1_epi32(four));
}

inline Sums no_sums() { return _mm512_setzero_si512(); }
inline void store_sums(int32_t* out, Sums a) { _mm512_storeu_si512(out, a); }

// Whether products are those of weights + 128, so that 128 times the sum of x must be taken away.
constexpr bool kIsBiased = true;
