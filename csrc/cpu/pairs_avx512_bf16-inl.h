// Products of bfloat16 pairs by AVX512_BF16. Included inside a namespace, after the vectors.

using RoundedX = Pair;

// c + a b, of both members of every pair.
inline Vec fma(PairVec a, PairVec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline void round_row(const float* x, int64_t depth, void* pairs) {
    Pair* out = static_cast<Pair*>(pairs);
    int64_t k = 0;
    for (; k + kWidth <= depth; k += kWidth) {
        const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(x + k)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k / 2), rounded);
    }
    if (k == depth) return;
    const int64_t left = depth - k;
    const auto is_x = static_cast<__mmask16>((1u << left) - 1);
    const auto is_pair = static_cast<__mmask8>((1u << (left + 1) / 2) - 1);
    const auto rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(is_x, x + k));
    _mm256_mask_storeu_epi32(out + k / 2, is_pair, reinterpret_cast<__m256i>(rounded));
}
