// Soft cap of numbers. Included inside a namespace, after the activations and the columns.

// x becomes cap * tanh(x / cap).
inline void soft_cap(float cap, int64_t size, float* x) {
    const Vec caps = broadcast(cap);
    for_columns(size, [&](int64_t i, int64_t count) {
        store_some(x + i, count, mul(caps, tanh(div(load_some(x + i, count), caps))));
    });
}
