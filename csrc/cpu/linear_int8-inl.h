// Products of int8 rows with a panel of packed int8 weights. Included inside a namespace, before
// the float products.

// Smaller rows count as zero: the inverse of their scale is no float.
constexpr float kLeastMagnitude = 0x1p-100f;

// q = round(x * 127 / max |x|). A row with NaN or infinities gets the scale NaN, so that all its
// products are NaN.
inline void quantise_row(const float* x, int64_t depth, const Int8Row& out) {
    const Vec zero = broadcast(0.0f);
    Vec most = zero, never = zero;  // x * 0 is NaN for NaN and infinities
    for_columns(depth, [&](int64_t column, int64_t count) {
        const Vec a = load_some(x + column, count, 0.0f);
        most = max(sub(zero, negative_abs(a)), most);
        never = fma(a, zero, never);
    });
    const float magnitude = largest(most);
    const bool is_finite = sum(never) == 0.0f;
    const bool is_zero = !is_finite || magnitude < kLeastMagnitude;
    *out.scale = is_finite ? (is_zero ? 0.0f : magnitude / 127.0f) : NAN;
    const Vec inverse = broadcast(is_zero ? 0.0f : 127.0f / magnitude);
    int8_t block[kWidth];
    for_columns(depth, [&](int64_t column, int64_t count) {
        const Vec a = is_zero ? zero : mul(load_some(x + column, count, 0.0f), inverse);
        if (count >= kWidth) return store_rounded(out.values + column, a);
        store_rounded(block, a);
        for (int64_t i = 0; i < count; ++i) out.values[column + i] = block[i];
    });
    for (int64_t k = depth; k < (depth + 3) / 4 * 4; ++k) out.values[k] = 0;
    int32_t total = 0;
    for (int64_t k = 0; k < depth; ++k) total += out.values[k];
    *out.offset = kIsBiased ? -128 * total : 0;
}

// Rows of int8 and what makes numbers of their products.
struct Int8Inputs {
    Int8Rows rows;
    const float* column_scale;  // of a whole panel
    int64_t depth;              // groups of four

    Int8Inputs from(int64_t row) const { return {rows.from(row), column_scale, depth}; }
};

// y = x W^T for kRows rows and kSumsVecs * kWidth columns. Integers are summed exactly, and what
// follows is the same on every instruction set: products and sums are rounded one by one.
template <int kRows>
inline void multiply_pass(const Int8Inputs& x, const Bytes* panel, const float* column_scale,
                          const Results& results) {
    Sums acc[kRows][kSumsVecs];
    const int8_t* row[kRows];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kSumsVecs; ++c) acc[r][c] = broadcast_sums(x.rows.offset[r]);
        row[r] = x.rows.values + r * x.rows.stride;
    }
    for (int64_t k = 0; k < x.depth; ++k) {
        ByteVec weight[kSumsVecs];
        for (int c = 0; c < kSumsVecs; ++c) {
            weight[c] = load_bytes(panel[k * kPanel + c * kWidth].byte);
        }
        for (int r = 0; r < kRows; ++r) {
            for (int c = 0; c < kSumsVecs; ++c) {
                acc[r][c] = add_products(acc[r][c], weight[c], row[r] + 4 * k);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[r]);
        for (int c = 0; c < kSumsVecs; ++c) {
            const Vec scales = mul(scale, load(column_scale + c * kWidth));
            results.put(r, c * kWidth, mul(to_floats(acc[r][c]), scales));
        }
    }
}

// The same for all columns of a panel and the rows `first .. last`.
inline void multiply(const Int8Inputs& x, const Bytes* panel, int64_t first, int64_t last,
                     PanelResults& results) {
    static_assert(kPanel % (kSumsVecs * kWidth) == 0);
    RowBlocks<kSumsRows>(last - first).for_each([&](auto rows, int64_t begin) {
        const int64_t row = first + begin;
        for (int64_t c = 0; c < kPanel; c += kSumsVecs * kWidth) {
            multiply_pass<rows()>(x.from(row), panel + c, x.column_scale + c,
                                  results.of(row).from(c));
        }
        results.finish(row, rows());
    });
}
