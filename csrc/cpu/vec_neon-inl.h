// Vectors of 4 floats by NEON, with the registers for wide blocks. Included inside a namespace,
// after the standard headers.

using Vec = float32x4_t;

constexpr int kWidth = 4;
constexpr int kMaxRows = 6;     // query rows that share a load of a key; bounded by the registers
constexpr int kTurnedRows = 4;  // query rows that share a load of turned keys
constexpr int kPassRows = 6, kPassVecs = 4;  // rows and vectors of sums that fit the registers
constexpr int pass_vecs(int rows) { return rows <= 3 ? 8 : kPassVecs; }

inline Vec broadcast(float x) { return vdupq_n_f32(x); }
inline Vec load(const float* x) { return vld1q_f32(x); }
inline Vec load(const BFloat16* x) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&x->bits), 16));
}
inline Vec load(const Half* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits))); }
inline void store(float* out, Vec a) { vst1q_f32(out, a); }

using PairVec = uint32x4_t;

inline PairVec load(const Pair* x) {
    return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(x)));
}
inline PairVec broadcast(Pair x) { return vdupq_n_u32(bits_of(x)); }
inline Vec even(PairVec a) { return vreinterpretq_f32_u32(vshlq_n_u32(a, 16)); }
inline Vec odd(PairVec a) { return vreinterpretq_f32_u32(vandq_u32(a, vdupq_n_u32(0xffff0000u))); }

// Rounds kWidth numbers between -127 and 127 to nearest, ties to even.
inline void store_rounded(int8_t* out, Vec a) {
    const int16x4_t half = vqmovn_s32(vcvtnq_s32_f32(a));
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(half, half));
    std::memcpy(out, &bytes, kWidth);
}

inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
// The second argument where either is NaN, unlike NEON's own.
inline Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Vec round(Vec a) { return vrndnq_f32(a); }

inline uint32_t lane_bits(uint32x4_t is_set) {
    return vaddvq_u32(vandq_u32(is_set, uint32x4_t{1, 2, 4, 8}));
}
// Bit i: lane i of a is greater than lane i of b.
inline uint32_t greater(Vec a, Vec b) { return lane_bits(vcgtq_f32(a, b)); }
inline uint32_t greater_equal(Vec a, Vec b) { return lane_bits(vcgeq_f32(a, b)); }

inline float sum(Vec a) { return vaddvq_f32(a); }
inline float largest(Vec a) {
    a = max(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(max(a, vextq_f32(a, a, 1)), 0);
}

// -|a|.
inline Vec negative_abs(Vec a) { return vnegq_f32(vabsq_f32(a)); }

// The larger of a >= 0 and |b|, NaN where either is NaN: bits compare like numbers.
inline Vec larger_magnitude(Vec a, Vec b) {
    const int32x4_t bits = vreinterpretq_s32_f32(vabsq_f32(b));
    return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), bits));
}

// a where the sign bit of x is set, b elsewhere.
inline Vec where_negative(Vec x, Vec a, Vec b) {
    return vbslq_f32(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 31)), a, b);
}

// p * 2^n for integral n >= -126; 0 where x < min_x.
inline Vec scale_by_power(Vec p, Vec n, Vec x, Vec min_x) {
    const int32x4_t exponent = vshlq_n_s32(vcvtq_s32_f32(n), 23);
    const int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p), exponent);
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(scaled), vcltq_f32(x, min_x)));
}

// f = x / 2^n with 3/4 <= f < 3/2, for positive, normal x.
inline Vec split_power(Vec x, Vec* n) {
    const int32x4_t base = vreinterpretq_s32_f32(broadcast(0.75f));
    const int32x4_t bits = vsubq_s32(vreinterpretq_s32_f32(x), base);
    *n = vcvtq_f32_s32(vshrq_n_s32(bits, 23));
    const int32x4_t rest = vandq_s32(bits, vdupq_n_s32(0x7fffff));
    return vreinterpretq_f32_s32(vaddq_s32(rest, base));
}

// The sums of four vectors.
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
    store(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

// The sum of kWidth terms in the order in which `store_sums` adds lanes; term(i) gives the i-th.
template <class Term>
inline auto sum_lanes(const Term& term) {
    return add(add(term(0), term(1)), add(term(2), term(3)));
}

// Exchanges the rows and the columns of a square of kWidth vectors.
inline void transpose(Vec* row) {
    float64x2_t pair[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
        pair[i] = vreinterpretq_f64_f32(vtrn1q_f32(row[i], row[i + 1]));
        pair[i + 1] = vreinterpretq_f64_f32(vtrn2q_f32(row[i], row[i + 1]));
    }
    for (int i = 0; i < 2; ++i) {
        row[i] = vreinterpretq_f32_f64(vtrn1q_f64(pair[i], pair[2 + i]));
        row[2 + i] = vreinterpretq_f32_f64(vtrn2q_f64(pair[i], pair[2 + i]));
    }
}
