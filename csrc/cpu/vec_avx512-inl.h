// Vectors of 16 floats. Included inside a namespace, after the standard headers.

using Vec = __m512;

constexpr int kWidth = 16;
constexpr int kMaxRows = 6;     // query rows that share a load of a key; bounded by the registers
constexpr int kTurnedRows = 4;  // query rows that share a load of turned keys
constexpr int kPassRows = 6, kPassVecs = 4;  // rows and vectors of sums that fit the registers
constexpr int pass_vecs(int /*rows*/) { return kPassVecs; }

inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* x) { return _mm512_loadu_ps(x); }
inline Vec load(const BFloat16* x) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load(const Half* x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
inline void store(float* out, Vec a) { _mm512_storeu_ps(out, a); }

using PairVec = __m512i;

inline PairVec load(const Pair* x) { return _mm512_loadu_si512(x); }
inline PairVec broadcast(Pair x) { return _mm512_set1_epi32(static_cast<int32_t>(bits_of(x))); }
inline Vec even(PairVec a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
inline Vec odd(PairVec a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-0x10000)));
}

// Rounds kWidth numbers between -127 and 127 to nearest, ties to even.
inline void store_rounded(int8_t* out, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The second argument where either is NaN.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }

// Bit i: lane i of a is greater than lane i of b.
inline uint32_t greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline uint32_t greater_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

inline float sum(Vec a) { return _mm512_reduce_add_ps(a); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a); }

// -|a|.
inline Vec negative_abs(Vec a) { return _mm512_or_ps(a, broadcast(-0.0f)); }

// The larger of a >= 0 and |b|, NaN where either is NaN: bits compare like numbers.
inline Vec larger_magnitude(Vec a, Vec b) {
    const __m512i bits = _mm512_castps_si512(_mm512_andnot_ps(broadcast(-0.0f), b));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), bits));
}

// a where the sign bit of x is set, b elsewhere.
inline Vec where_negative(Vec x, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), b, a);
}

// p * 2^n for integral n; 0 where x < min_x.
inline Vec scale_by_power(Vec p, Vec n, Vec x, Vec min_x) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, min_x, _CMP_NLT_UQ), p, n);
}

// f = x / 2^n with 3/4 <= f < 3/2, for positive, normal x.
inline Vec split_power(Vec x, Vec* n) {
    const __m512i base = _mm512_castps_si512(broadcast(0.75f));
    const __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(x), base);
    *n = _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23));
    const __m512i rest = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff));
    return _mm512_castsi512_ps(_mm512_add_epi32(rest, base));
}

// The sums of four vectors.
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
    const Vec ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Vec cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const Vec abcd =
        add(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
            _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// The sum of kWidth terms in the order in which `store_sums` adds lanes; term(i) gives the i-th.
template <class Term>
inline auto sum_lanes(const Term& term) {
    const auto four = [&](int i) __attribute__((always_inline)) {
        return add(add(term(i), term(i + 2)), add(term(i + 1), term(i + 3)));
    };
    return add(add(four(0), four(8)), add(four(4), four(12)));
}

// Exchanges the rows and the columns of a square of kWidth vectors.
inline void transpose(Vec* row) {
    __m512d pair[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
        pair[i] = _mm512_castps_pd(_mm512_unpacklo_ps(row[i], row[i + 1]));
        pair[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(row[i], row[i + 1]));
    }
    // quarter q of four[4 i + j] has column 4 q + j of the rows from 4 i on
    Vec four[kWidth];
    for (int i = 0; i < kWidth; i += 4) {
        four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i], pair[i + 2]));
        four[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i], pair[i + 2]));
        four[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i + 1], pair[i + 3]));
        four[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i + 1], pair[i + 3]));
    }
    for (int j = 0; j < 4; ++j) {
        const Vec even_low = _mm512_shuffle_f32x4(four[j], four[4 + j], 0x88);
        const Vec even_high = _mm512_shuffle_f32x4(four[8 + j], four[12 + j], 0x88);
        const Vec odd_low = _mm512_shuffle_f32x4(four[j], four[4 + j], 0xdd);
        const Vec odd_high = _mm512_shuffle_f32x4(four[8 + j], four[12 + j], 0xdd);
        row[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        row[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        row[8 + j] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        row[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}
