// Rotary embedding of one head. Included inside a namespace, after the columns.

// y may be x.
inline void rotate_head(const float* x, const float* cos, const float* sin, int64_t half,
                        float* y) {
    for_columns(half, [&](int64_t i, int64_t count) {
        const Vec a = load_some(x + i, count), b = load_some(x + half + i, count);
        const Vec c = load_some(cos + i, count), s = load_some(sin + i, count);
        store_some(y + i, count, sub(mul(a, c), mul(b, s)));
        store_some(y + half + i, count, add(mul(b, c), mul(a, s)));
    });
}
