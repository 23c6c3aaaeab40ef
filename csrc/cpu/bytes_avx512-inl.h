// Products of groups of four int8 by AVX-512 without VNNI. Included inside a namespace, after the
// vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 4, kSumsVecs = 4;  // rows and sums that fit the registers
constexpr int kSliceGroups = 0;              // a panel is not cut into slices

using Input = int8_t;
// Where input k stands among the integers of its row.
constexpr int64_t place_of(int64_t k) { return k; }
using Sums = __m512i;

// Weights of kWidth columns: their absolute values, and a bit for each one below zero.
struct ByteVec {
    __m512i magnitude;
    __mmask64 is_negative;
};

inline ByteVec split(__m512i bytes) {
    const __m512i value = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}

inline ByteVec load_bytes(const uint8_t* weight) { return split(_mm512_loadu_si512(weight)); }

// The weights of the low or the high halves, each as 16 times weight + 128.
template <bool kHigh>
inline ByteVec load_halves(const uint8_t* weight) {
    const __m512i bytes = _mm512_loadu_si512(weight);
    const __m512i halves = kHigh ? bytes : _mm512_slli_epi16(bytes, 4);
    return split(_mm512_and_si512(halves, _mm512_set1_epi8(-16)));
}

// acc + the sums of the four products of every column. The sum of two products is at most
// 2 * 128 * 127 and so never saturates, as no input is -128.
inline Sums add_products(Sums acc, ByteVec weight, const Input* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m512i all = _mm512_set1_epi32(four);
    const __m512i with_sign =
        _mm512_mask_sub_epi8(all, weight.is_negative, _mm512_setzero_si512(), all);
    const __m512i of_two = _mm512_maddubs_epi16(weight.magnitude, with_sign);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(of_two, _mm512_set1_epi16(1)));
}

inline Sums broadcast_sums(int32_t x) { return _mm512_set1_epi32(x); }
// a + 128 b.
inline Sums add_high(Sums a, Sums b) { return _mm512_add_epi32(a, _mm512_slli_epi32(b, 7)); }
inline Vec to_floats(Sums a) { return _mm512_cvtepi32_ps(a); }

// Sums begin at zero.
inline int32_t offset_of(const Input* /*x*/, int64_t /*size*/) { return 0; }
