// Reads and writes a row vector by vector, the last columns too. Included inside a namespace, after
// the vectors.

// Loads the first `count` columns, and `fill` for the others.
inline Vec load_some(const float* x, int64_t count, float fill = -INFINITY) {
    if (count >= kWidth) return load(x);
    float block[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) block[i] = i < count ? x[i] : fill;
    return load(block);
}

inline void store_some(float* out, int64_t count, Vec a) {
    if (count >= kWidth) return store(out, a);
    float block[kWidth];
    store(block, a);
    for (int64_t i = 0; i < count; ++i) out[i] = block[i];
}

// Calls body(column, count) for one vector of columns after another. The last may have fewer
// columns.
template <class Body>
inline void for_columns(int64_t size, const Body& body) {
    for (int64_t column = 0; column < size; column += kWidth) body(column, size - column);
}
