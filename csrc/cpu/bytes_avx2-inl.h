// Products of groups of four int8 by AVX2, as int16. Included inside a namespace, after the
// vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 4, kSumsVecs = 2;  // rows and sums that fit the registers
constexpr int kSliceGroups = 32;

using Sums = __m256i;

// An input of a group of four is an int16, because products of bytes take an instruction more: to
// move the sign of the weight to the input. The even ones of a group come first.
using Input = int16_t;
// Where input k stands among the integers of its row.
constexpr int64_t place_of(int64_t k) { return (k & ~3) | (k & 1) << 1 | (k & 2) >> 1; }

// Rounds kWidth numbers between -127 and 127 to nearest, ties to even.
inline void store_rounded(Input* out, Vec a) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i groups = _mm256_shuffle_epi8(_mm256_cvtps_epi32(a), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(groups, 0x08)));
}

// Weights of kWidth columns, as int16: the even ones and the odd ones of their groups.
struct ByteVec {
    __m256i even, odd;
};

inline ByteVec split(__m256i bytes) {
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
}

inline ByteVec load_bytes(const uint8_t* weight) {
    return split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight)));
}

// The weights of the low or the high halves, each as 16 times weight + 128.
template <bool kHigh>
inline ByteVec load_halves(const uint8_t* weight) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
    const __m256i halves = kHigh ? bytes : _mm256_slli_epi16(bytes, 4);
    return split(_mm256_and_si256(halves, _mm256_set1_epi8(-16)));
}

// acc + the sums of two products of every column.
inline Sums add_pairs(Sums acc, __m256i weight, const Input* x) {
    int32_t two;
    std::memcpy(&two, x, sizeof two);
    const __m256i of_two = _mm256_madd_epi16(weight, _mm256_set1_epi32(two));
    // not the intrinsic, around which GCC 12 copies the sums from register to register
    asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(of_two));
    return acc;
}

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const Input* x) {
    return add_pairs(add_pairs(acc, weight.even, x), weight.odd, x + 2);
}

inline Sums broadcast_sums(int32_t x) { return _mm256_set1_epi32(x); }
// a + 128 b.
inline Sums add_high(Sums a, Sums b) { return _mm256_add_epi32(a, _mm256_slli_epi32(b, 7)); }
inline Vec to_floats(Sums a) { return _mm256_cvtepi32_ps(a); }

// Products are those of weights + 128, so sums begin at -128 times the sum of x.
inline int32_t offset_of(const Input* x, int64_t size) {
    int32_t of_all = 0;
    for (int64_t k = 0; k < size; ++k) of_all += x[k];
    return -128 * of_all;
}
