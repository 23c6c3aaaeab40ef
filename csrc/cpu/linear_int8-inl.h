// Products of int8 rows with a panel of packed int8 weights. Included inside a namespace, before
// the float products.

// Smaller rows count as zero: the inverse of their scale is no float.
constexpr float kLeastMagnitude = 0x1p-100f;

// The largest |x| of a row, NaN if it holds NaN or infinities.
inline float magnitude_of(const float* x, int64_t depth) {
    constexpr int kChains = 2;  // a chain of its own would wait for every sum
    const Vec zero = broadcast(0.0f);
    Vec most[kChains];
    for (int i = 0; i < kChains; ++i) most[i] = zero;
    int64_t k = 0;
    for (; k + kChains * kWidth <= depth; k += kChains * kWidth) {
        for (int i = 0; i < kChains; ++i) {
            most[i] = larger_magnitude(most[i], load(x + k + i * kWidth));
        }
    }
    for (; k < depth; k += kWidth) {
        most[0] = larger_magnitude(most[0], load_some(x + k, depth - k, 0.0f));
    }
    const Vec of_lanes = larger_magnitude(most[0], most[1]);
    // a product with zero is NaN for NaN and infinities
    return sum(mul(of_lanes, zero)) == 0.0f ? largest(of_lanes) : NAN;
}

// q = round(x * 127 / max |x|). A row with NaN or infinities gets the scale NaN, so that all its
// products are NaN.
inline void quantise_row(const float* x, int64_t depth, const Int8Row& out) {
    const float magnitude = magnitude_of(x, depth);
    const int64_t size = (depth + 3) / 4 * 4;
    Input* const values = reinterpret_cast<Input*>(out.values);
    if (!(magnitude >= kLeastMagnitude)) {
        *out.scale = std::isnan(magnitude) ? NAN : 0.0f;
        *out.offset = 0;
        std::memset(values, 0, size * sizeof(Input));
        return;
    }
    *out.scale = magnitude / 127.0f;
    const Vec inverse = broadcast(127.0f / magnitude);
    int64_t k = 0;
    for (; k + kWidth <= depth; k += kWidth) {
        store_rounded(values + k, mul(load(x + k), inverse));
    }
    if (k < depth) {
        Input block[kWidth];
        store_rounded(block, mul(load_some(x + k, depth - k, 0.0f), inverse));
        std::memcpy(values + k, block, (size - k) * sizeof(Input));
    }
    *out.offset = offset_of(values, size);
}

// Rows of int8 and what makes numbers of their products.
struct Int8Inputs {
    Int8Rows rows;
    const float* column_scale;  // of a whole panel
    int64_t depth;              // groups of four
    const char* next;           // weights that come next, or null

    Int8Inputs from(int64_t row) const { return {rows.from(row), column_scale, depth, next}; }
};

// y = x W^T for kRows rows and kSumsVecs * kWidth columns; first(row, column) are the sums before.
// Fetches kFetched bytes for a group of four and of a column.
// Integers are summed exactly, and what follows is the same on every instruction set: products and
// sums are rounded one by one.
template <int kRows, int kFetched, class First>
inline void multiply_pass(const Int8Inputs& inputs, const Bytes* panel, const First& first,
                          const Results& to) {
    const Int8Inputs x = inputs;  // copies, which no store can change
    const Results results = to;
    Sums acc[kRows][kSumsVecs];
    const Input* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const Input*>(x.rows.values + r * x.rows.stride);
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) acc[r][c] = first(r, c * kWidth);
    }
    for (int64_t k = 0; k < x.depth; ++k) {
        ByteVec weight[kSumsVecs];
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) {
            weight[c] = load_bytes(panel[k * kPanel + c * kWidth].byte);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kSumsVecs; ++c) {
                acc[r][c] = add_products(acc[r][c], weight[c], row[r] + 4 * k);
            }
        }
        constexpr int kBytes = kFetched * kSumsVecs * kWidth;
        for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(x.next + k * kBytes + i, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[r]);
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) {
            const Vec scales = mul(scale, load(x.column_scale + c * kWidth));
            results.put(r, c * kWidth, mul(to_floats(acc[r][c]), scales));
        }
    }
}

// The same for all columns of a panel and one of the blocks of rows.
template <int kRows, class SumsBefore>
inline void multiply_block(const SumsBefore& sums, const Int8Inputs& x, const Bytes* panel,
                           int64_t row, int64_t block, int64_t num_blocks, PanelResults& results) {
    const auto bytes = static_cast<int64_t>(x.depth * kPanel * sizeof(Bytes));
    with_shares(block, x.next == nullptr ? 1 : num_blocks, [&](auto shares) {
        constexpr int kShares = shares(), kFetched = kShares == 0 ? 0 : sizeof(Bytes) / kShares;
        for (int64_t c = 0; c < kPanel; c += kSumsVecs * kWidth) {
            Int8Inputs own = x.from(row);
            own.column_scale += c;
            if constexpr (kShares > 0) own.next += (block * bytes + c * bytes / kPanel) / kShares;
            multiply_pass<kRows, kFetched>(
                own, panel + c, [&](int r, int64_t column) { return sums(row + r, c + column); },
                results.of(row).from(c));
        }
    });
}

// The same for the rows `first .. last`; sums(row, column) come before.
template <class SumsBefore>
inline void multiply_after(const SumsBefore& sums, const Int8Inputs& x, const Bytes* panel,
                           int64_t first, int64_t last, PanelResults& results) {
    static_assert(kPanel % (kSumsVecs * kWidth) == 0);
    const RowBlocks<kSumsRows> blocks(last - first);
    int64_t block = 0;
    blocks.for_each([&](auto rows, int64_t begin) {
        const int64_t row = first + begin;
        multiply_block<rows()>(sums, x, panel, row, block++, blocks.size(), results);
        results.finish(row, rows());
    });
}

// The same for a whole product.
inline void multiply(const Int8Inputs& x, const Bytes* panel, int64_t first, int64_t last,
                     PanelResults& results) {
    const auto offset = [&](int64_t row, int64_t) { return broadcast_sums(x.rows.offset[row]); };
    multiply_after(offset, x, panel, first, last, results);
}
