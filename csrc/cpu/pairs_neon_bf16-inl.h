// Products of bfloat16 pairs by NEON's BF16. Included inside a namespace, after the vectors.

using RoundedX = Pair;

// c + a b, of both members of every pair.
inline Vec fma(PairVec a, PairVec b, Vec c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
}

inline void round_row(const float* x, int64_t depth, void* pairs) {
    Pair* out = static_cast<Pair*>(pairs);
    for (int64_t k = 0; k < depth; k += 2, ++out) {
        *out = {};
        from_float(x[k], &out->even);
        if (k + 1 < depth) from_float(x[k + 1], &out->odd);
    }
}
