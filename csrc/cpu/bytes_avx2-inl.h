// Products of groups of four int8 by AVX2. Included inside a namespace, after the vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 4, kSumsVecs = 2;  // rows and sums that fit the registers

using Sums = __m256i;

// Weights of kWidth columns, and their absolute values.
struct ByteVec {
    __m256i value, magnitude;
};

inline ByteVec load_bytes(const uint8_t* weight) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
    const __m256i value = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
    return {value, _mm256_abs_epi8(value)};
}

// acc + the sums of the four products of every column. The sum of two products is at most 2 * 127^2
// and so never saturates, as none of the numbers is -128.
inline Sums add_products(Sums acc, ByteVec weight, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i with_sign = _mm256_sign_epi8(_mm256_set1_epi32(four), weight.value);
    const __m256i of_two = _mm256_maddubs_epi16(weight.magnitude, with_sign);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(of_two, _mm256_set1_epi16(1)));
}

inline Sums broadcast_sums(int32_t x) { return _mm256_set1_epi32(x); }
inline Vec to_floats(Sums a) { return _mm256_cvtepi32_ps(a); }

// Sums begin at zero.
inline int32_t offset_of(const int8_t* /*x*/, int64_t /*size*/) { return 0; }
