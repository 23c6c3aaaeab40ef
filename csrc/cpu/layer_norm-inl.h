// Layer normalisation of one row. Included inside a namespace, after the vectors.

// Calls body(d) for every whole vector. The caller handles the numbers behind the last one.
template <class Body>
inline int64_t for_vectors(int64_t size, const Body& body) {
    int64_t d = 0;
    for (; d + kWidth <= size; d += kWidth) body(d);
    return d;
}

inline void normalise_row(const LayerNormParams& params, int64_t row) {
    const float* x = params.x + row * params.x_stride;
    float* y = params.y + row * params.size;
    Vec acc = broadcast(0.0f);
    int64_t d = for_vectors(params.size, [&](int64_t i) { acc = add(acc, load(x + i)); });
    float total = sum(acc);
    for (; d < params.size; ++d) total += x[d];
    const float mean = total / static_cast<float>(params.size);
    const Vec means = broadcast(mean);
    acc = broadcast(0.0f);
    d = for_vectors(params.size, [&](int64_t i) {
        const Vec centred = sub(load(x + i), means);
        acc = fma(centred, centred, acc);
    });
    float squares = sum(acc);
    for (; d < params.size; ++d) squares += (x[d] - mean) * (x[d] - mean);
    const float scale =
        1.0f / std::sqrt(squares / static_cast<float>(params.size) + params.epsilon);
    const Vec scales = broadcast(scale);
    d = for_vectors(params.size, [&](int64_t i) {
        const Vec normal = mul(sub(load(x + i), means), scales);
        store(y + i, fma(normal, load(params.weight + i), load(params.bias + i)));
    });
    for (; d < params.size; ++d) {
        y[d] = (x[d] - mean) * scale * params.weight[d] + params.bias[d];
    }
}
