// Products of groups of four int8 by NEON: alone, with its products of bytes (PYBEAM_DOTS), or also
// with those of unsigned and signed ones (PYBEAM_MIXED_DOTS). Included inside a namespace, after
// the vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 6, kSumsVecs = 4;  // rows and sums that fit the registers
constexpr int kSliceGroups = 0;              // a panel is not cut into slices

using Input = int8_t;
// Where input k stands among the integers of its row.
constexpr int64_t place_of(int64_t k) { return k; }
using Sums = int32x4_t;
using ByteVec = uint8x16_t;

// Weights, or weights + 128 where an instruction takes unsigned ones.
inline ByteVec without_offset(ByteVec bytes) {
#ifdef PYBEAM_MIXED_DOTS
    return bytes;
#else
    return veorq_u8(bytes, vdupq_n_u8(128));
#endif
}

inline ByteVec load_bytes(const uint8_t* weight) { return without_offset(vld1q_u8(weight)); }

// The weights of the low or the high halves, each 16 times.
template <bool kHigh>
inline ByteVec load_halves(const uint8_t* weight) {
    const ByteVec bytes = vld1q_u8(weight);
    return without_offset(kHigh ? vandq_u8(bytes, vdupq_n_u8(0xf0)) : vshlq_n_u8(bytes, 4));
}

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const Input* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const int8x16_t inputs = vreinterpretq_s8_s32(vdupq_n_s32(four));
#if defined(PYBEAM_MIXED_DOTS)
    return vusdotq_s32(acc, weight, inputs);
#elif defined(PYBEAM_DOTS)
    return vdotq_s32(acc, vreinterpretq_s8_u8(weight), inputs);
#else
    // two products fit an int16, as inputs are at least -127
    const int8x16_t weights = vreinterpretq_s8_u8(weight);
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(inputs));
    const int16x8_t high = vmull_high_s8(weights, inputs);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
#endif
}

inline Sums broadcast_sums(int32_t x) { return vdupq_n_s32(x); }
// a + 128 b.
inline Sums add_high(Sums a, Sums b) { return vaddq_s32(a, vshlq_n_s32(b, 7)); }
inline Vec to_floats(Sums a) { return vcvtq_f32_s32(a); }

// Products of unsigned weights are those of weights + 128, so sums begin at -128 times the sum of
// x.
inline int32_t offset_of([[maybe_unused]] const Input* x, [[maybe_unused]] int64_t size) {
    int32_t of_all = 0;
#ifdef PYBEAM_MIXED_DOTS
    for (int64_t k = 0; k < size; ++k) of_all += x[k];
#endif
    return -128 * of_all;
}
