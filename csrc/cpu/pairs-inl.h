// Products of bfloat16 pairs without an instruction for them. Included inside a namespace, after
// the vectors.

// c + a b, of both members of every pair.
inline Vec fma(PairVec a, PairVec b, Vec c) {
    return fma(even(a), even(b), fma(odd(a), odd(b), c));
}

inline void round_row(const float* x, int64_t depth, Pair* out) {
    int64_t k = 0;
    for (; k + 1 < depth; k += 2, ++out) {
        from_float(x[k], &out->even);
        from_float(x[k + 1], &out->odd);
    }
    if (k == depth) return;
    from_float(x[k], &out->even);
    from_float(0.0f, &out->odd);
}
