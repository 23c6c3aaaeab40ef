// Root-mean-square normalisation of one row. Included inside a namespace, after `for_vectors`.

inline void rms_norm_row(const float* x, const float* weight, float epsilon, int64_t size,
                         float* y) {
    Vec acc = broadcast(0.0f);
    int64_t d = for_vectors(size, [&](int64_t i) {
        const Vec a = load(x + i);
        acc = fma(a, a, acc);
    });
    float squares = sum(acc);
    for (; d < size; ++d) squares += x[d] * x[d];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
    const Vec scales = broadcast(scale);
    d = for_vectors(
        size, [&](int64_t i) { store(y + i, mul(mul(load(x + i), scales), load(weight + i))); });
    for (; d < size; ++d) y[d] = x[d] * scale * weight[d];
}
