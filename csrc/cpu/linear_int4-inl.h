// Products of int8 rows with a panel of packed int4 weights. Included inside a namespace, after
// those with int8 weights.

// A group of a panel's columns: their scales, and their weights as `LinearParams` says.
struct Int4Block {
    BFloat16 scale[kPanel];
    Bytes pair[kGroup / 8][kPanel];
};
static_assert(sizeof(Int4Block) == kPanel * sizeof(Int4Group) && sizeof(Int4Group) == kGroupBytes);

// Whether kRows rows have too many sums of int4 for the registers: of a group, and of all before.
// They take half as many columns at a time then.
template <int kRows>
constexpr bool kHasManySums = 2 * kRows > kSumsRows;

// Adds to the sums total [kRows, kPanel] those of the groups `begin .. end`, in kVecs * kWidth
// columns, first(row, group) before each.
template <int kRows, int kVecs, int kShares, class First>
inline void add_groups(const Int8Inputs& inputs, const Int4Block* panel, int64_t begin, int64_t end,
                       int64_t column, const First& first, float* total) {
    const Int8Inputs x = inputs;
    Vec sums[kRows][kVecs];
    const Input* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const Input*>(x.rows.values + r * x.rows.stride);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            sums[r][c] = load(total + r * kPanel + column + c * kWidth);
        }
    }
    for (int64_t g = begin; g < end; ++g) {
        const Int4Block& block = panel[g];
        Sums acc[kRows][kVecs];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) acc[r][c] = first(r, g);
        }
        for (int64_t k = 0; k < kGroup / 8; ++k) {
            const Bytes* pair = block.pair[k] + column;
            const int64_t group = g * (kGroup / 4) + 2 * k;
            ByteVec weight[kVecs];
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) weight[c] = load_halves<false>(pair[c * kWidth].byte);
            add_group<kRows, kVecs>(acc, weight, row, group);
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) weight[c] = load_halves<true>(pair[c * kWidth].byte);
            add_group<kRows, kVecs>(acc, weight, row, group + 1);
        }
        fetch_share<Int4Group, kVecs, kShares>(x.next, g - begin);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            // weights were taken 16 times
            const Vec scale = mul(load(block.scale + column + c * kWidth), broadcast(0x1p-4f));
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                sums[r][c] = add(sums[r][c], mul(to_floats(acc[r][c]), scale));
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            store(total + r * kPanel + column + c * kWidth, sums[r][c]);
        }
    }
}

// The same for all columns of a panel and one of the blocks of rows; sums(row, group) come before.
template <int kRows, class SumsBefore>
inline void multiply_block(const SumsBefore& sums, const Int8Inputs& x, const Int4Group* panel,
                           int64_t row, int64_t block, int64_t num_blocks, PanelResults& results) {
    constexpr int kVecs = kHasManySums<kRows> ? kSumsVecs / 2 : kSumsVecs;
    // groups whose weights stay in the cache while half of the columns after the other is
    // multiplied
    constexpr int64_t kNear = 8;
    const auto* const weight = reinterpret_cast<const Int4Block*>(panel);
    alignas(64) float total[kRows * kPanel] = {};
    const auto first = [&](int r, int64_t group) { return sums(row + r, group); };
    const auto add = [&](int64_t begin, int64_t end, const char* next, auto shares) {
        constexpr int kShares = shares();
        const auto bytes = static_cast<int64_t>((end - begin) * sizeof *weight);
        for (int64_t c = 0; c < kPanel; c += kVecs * kWidth) {
            Int8Inputs own = x.from(row);
            if constexpr (kShares > 0)
                own.next = next + (block * bytes + c * bytes / kPanel) / kShares;
            add_groups<kRows, kVecs, kShares>(own, weight, begin, end, c, first, total);
        }
    };
    if (kHasManySums<kRows> && num_blocks == 1) {
        for (int64_t begin = 0; begin < x.depth; begin += kNear) {
            const int64_t end = begin + kNear < x.depth ? begin + kNear : x.depth;
            // it does not read memory in its order
            const char* next = reinterpret_cast<const char*>(weight + end);
            add(begin, end, next, std::integral_constant<int, kHasManySums<kRows>>());
        }
    } else {
        with_shares(block, x.next == nullptr ? 1 : num_blocks,
                    [&](auto shares) { add(0, x.depth, x.next, shares); });
    }
    const Results to = results.of(row);
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[row + r]);
        for (int64_t c = 0; c < kPanel; c += kWidth) {
            to.put(r, c, mul(load(total + r * kPanel + c), scale));
        }
    }
}

// The same for the rows `first .. last`.
template <class SumsBefore>
inline void multiply_after(const SumsBefore& sums, const Int8Inputs& x, const Int4Group* panel,
                           int64_t first, int64_t last, PanelResults& results) {
    const RowBlocks<kSumsRows> blocks(last - first);
    int64_t block = 0;
    blocks.for_each([&](auto rows, int64_t begin) {
        const int64_t row = first + begin;
        multiply_block<rows()>(sums, x, panel, row, block++, blocks.size(), results);
        results.finish(row, rows());
    });
}

// A whole product with int8 or int4 weights.
template <class W>
inline void multiply(const Int8Inputs& x, const W* panel, int64_t first, int64_t last,
                     PanelResults& results) {
    const auto offset = [&](int64_t row, int64_t place) {
        const int64_t group = std::is_same_v<W, Int4Group> ? place : 0;
        return broadcast_sums(x.rows.offset[row * x.rows.num_offsets + group]);
    };
    multiply_after(offset, x, panel, first, last, results);
}
