// Vectors of 8 floats. Included inside a namespace, after the standard headers.

using Vec = __m256;

constexpr int kWidth = 8;
constexpr int kMaxRows = 2;     // query rows that share a load of a key; bounded by the registers
constexpr int kTurnedRows = 3;  // query rows that share a load of turned keys
constexpr int kPassRows = 6, kPassVecs = 2;  // rows and vectors of sums that fit the registers
constexpr int pass_vecs(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : kPassVecs; }

inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* x) { return _mm256_loadu_ps(x); }
inline Vec load(const BFloat16* x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load(const Half* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
inline void store(float* out, Vec a) { _mm256_storeu_ps(out, a); }

using PairVec = __m256i;

inline PairVec load(const Pair* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
inline PairVec broadcast(Pair x) { return _mm256_set1_epi32(static_cast<int32_t>(bits_of(x))); }
inline Vec even(PairVec a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
inline Vec odd(PairVec a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-0x10000)));
}

// Rounds kWidth numbers between -127 and 127 to nearest, ties to even.
inline void store_rounded(int8_t* out, Vec a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i half =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packs_epi16(half, half));
}

inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// The second argument where either is NaN.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec round(Vec a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Bit i: lane i of a is greater than lane i of b.
inline uint32_t greater(Vec a, Vec b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
inline uint32_t greater_equal(Vec a, Vec b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}

inline float sum(Vec a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float largest(Vec a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// -|a|.
inline Vec negative_abs(Vec a) { return _mm256_or_ps(a, broadcast(-0.0f)); }

// The larger of a >= 0 and |b|, NaN where either is NaN: bits compare like numbers.
inline Vec larger_magnitude(Vec a, Vec b) {
    const __m256i bits = _mm256_castps_si256(_mm256_andnot_ps(broadcast(-0.0f), b));
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), bits));
}

// a where the sign bit of x is set, b elsewhere.
inline Vec where_negative(Vec x, Vec a, Vec b) { return _mm256_blendv_ps(b, a, x); }

// p * 2^n for integral n >= -126; 0 where x < min_x.
inline Vec scale_by_power(Vec p, Vec n, Vec x, Vec min_x) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const Vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(x, min_x, _CMP_NLT_UQ));
}

// f = x / 2^n with 3/4 <= f < 3/2, for positive, normal x.
inline Vec split_power(Vec x, Vec* n) {
    const __m256i base = _mm256_castps_si256(broadcast(0.75f));
    const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(x), base);
    *n = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
    const __m256i rest = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff));
    return _mm256_castsi256_ps(_mm256_add_epi32(rest, base));
}

// The sums of four vectors.
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
    const Vec abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

// The sum of kWidth terms in the order in which `store_sums` adds lanes; term(i) gives the i-th.
template <class Term>
inline auto sum_lanes(const Term& term) {
    const auto four = [&](int i) __attribute__((always_inline)) {
        return add(add(term(i), term(i + 1)), add(term(i + 2), term(i + 3)));
    };
    return add(four(0), four(4));
}

// Exchanges the rows and the columns of a square of kWidth vectors.
inline void transpose(Vec* row) {
    __m256d pair[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
        pair[i] = _mm256_castps_pd(_mm256_unpacklo_ps(row[i], row[i + 1]));
        pair[i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(row[i], row[i + 1]));
    }
    // half h of four[4 i + j] has column 4 h + j of the rows from 4 i on
    Vec four[kWidth];
    for (int i = 0; i < kWidth; i += 4) {
        four[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(pair[i], pair[i + 2]));
        four[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(pair[i], pair[i + 2]));
        four[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(pair[i + 1], pair[i + 3]));
        four[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(pair[i + 1], pair[i + 3]));
    }
    for (int j = 0; j < 4; ++j) {
        row[j] = _mm256_permute2f128_ps(four[j], four[4 + j], 0x20);
        row[4 + j] = _mm256_permute2f128_ps(four[j], four[4 + j], 0x31);
    }
}
