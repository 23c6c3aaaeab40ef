// Products of rows with a panel of packed float weights. Included inside a namespace, after the
// vectors.
//
// Every sum is one chain over the depth in order, whatever rows, slices and tasks are, so a row's
// result does not depend on the rows beside it.

// Depth of a slice of a panel. As float32 it takes 16 kB, or 32 kB on CPUs with AVX-512, and stays
// in the nearest caches while all rows are multiplied by it.
constexpr int64_t kSlice = kWidth == 16 ? 128 : 64;
// Rows whose unfinished sums wait for the next slice.
constexpr int64_t kWaitingRows = 192;

// The rows to multiply: numbers, or pairs of numbers for an instruction that takes pairs.
template <class X>
struct Inputs {
    const X* data;
    int64_t stride;

    Inputs from(int64_t row, int64_t k) const { return {data + row * stride + k, stride}; }
};

// Numbers of a row of x that one W is multiplied by.
template <class X, class W>
constexpr int kInputs = std::is_same_v<W, Pair> && std::is_same_v<X, float> ? 2 : 1;

// Whether a slice is copied as float32 when the first rows read it: so that it is widened once, or
// so that the narrow passes of the other rows find it in the first-level cache.
template <class X, class W>
constexpr bool kCopies =
    std::is_same_v<X, float> && (!std::is_same_v<W, float> || kPassVecs * kWidth < kPanel);

// The weights of a vector of columns that number `part` of a row's `kInputs` is multiplied by.
template <class X, class W>
inline auto load_weights(const W* weight, int part) {
    if constexpr (kInputs<X, W> == 2) {
        return part == 0 ? even(load(weight)) : odd(load(weight));
    } else {
        return load(weight);
    }
}

// The weights of a pass. `sums` has those of the slices before, and is null for the first slice.
template <class W>
struct Pass {
    const W* weight;
    int64_t depth;
    const float* sums;
    float* copy;       // gets the weights, where the pass keeps them
    const char* next;  // memory to fetch meanwhile, where the pass fetches

    Pass from(int64_t column) const {
        return {weight + column, depth, sums == nullptr ? nullptr : sums + column, copy + column,
                next};
    }

    // The same, to fetch one of so many shares of the next slice.
    Pass share(int64_t i, int64_t shares) const {
        const auto bytes = static_cast<int64_t>(depth * kPanel * sizeof(W));
        return {weight, depth, sums, copy, next + i * bytes / shares};
    }
};

// sums + x W^T for kRows rows and kVecs vectors of columns. Fetches kFetched bytes for a number of
// x and of a column.
template <int kRows, int kVecs, bool kKeeps, int kFetched, class X, class W>
inline void multiply_pass(const Inputs<X>& x, const Pass<W>& pass, const Results& results) {
    constexpr int kParts = kInputs<X, W>;
    Vec acc[kRows][kVecs];
    const X* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = x.data + r * x.stride;
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            acc[r][c] =
                pass.sums == nullptr ? broadcast(0.0f) : load(pass.sums + r * kPanel + c * kWidth);
        }
    }
    for (int64_t k = 0; k < pass.depth; ++k) {
#pragma GCC unroll 8
        for (int part = 0; part < kParts; ++part) {
            const int64_t input = k * kParts + part;
            const W* from = pass.weight + k * kPanel;
            float* to = pass.copy + input * kPanel;
            if constexpr (kRows < kVecs) {
                decltype(broadcast(*row[0])) value[kRows];
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) value[r] = broadcast(row[r][input]);
#pragma GCC unroll 8
                for (int c = 0; c < kVecs; ++c) {
                    const auto weight = load_weights<X>(from + c * kWidth, part);
                    if constexpr (kKeeps) store(to + c * kWidth, weight);
#pragma GCC unroll 8
                    for (int r = 0; r < kRows; ++r) acc[r][c] = fma(value[r], weight, acc[r][c]);
                }
            } else {
                decltype(load_weights<X>(from, 0)) weight[kVecs];
#pragma GCC unroll 8
                for (int c = 0; c < kVecs; ++c) {
                    weight[c] = load_weights<X>(from + c * kWidth, part);
                    if constexpr (kKeeps) store(to + c * kWidth, weight[c]);
                }
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    const auto value = broadcast(row[r][input]);
#pragma GCC unroll 8
                    for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(value, weight[c], acc[r][c]);
                }
            }
        }
        constexpr int kBytes = kFetched * kVecs * kWidth;
        for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(pass.next + k * kBytes + i, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) results.put(r, c * kWidth, acc[r][c]);
    }
}

// The same for all columns of a panel.
template <int kRows, bool kKeeps, int kFetched, class X, class W>
inline void multiply_block(const Inputs<X>& x, const Pass<W>& pass, const Results& results) {
    constexpr int kVecs = pass_vecs(kRows);
    for (int64_t c = 0; c < kPanel; c += kVecs * kWidth) {
        Pass<W> own = pass.from(c);
        own.next = pass.next + c * pass.depth * kFetched;
        multiply_pass<kRows, kVecs, kKeeps, kFetched>(x, own, results.from(c));
    }
}

// One slice of a panel times a block of rows, which is the first, the second or another. The first
// block keeps the weights for the others. The second fetches the next slice, because hardware loses
// the trail while others read the copy. A block alone fetches for itself where its passes jump.
template <int kRows, class X, class W>
inline void multiply_slice(const Inputs<X>& x, const Pass<W>& slice, int64_t block,
                           int64_t num_blocks, const Results& results) {
    constexpr int kParts = kInputs<X, W>;
    if (num_blocks == 1) {
        constexpr bool kJumps = pass_vecs(kRows) * kWidth < kPanel;
        return multiply_block<kRows, false, kJumps ? sizeof(W) : 0>(x, slice, results);
    }
    if constexpr (kCopies<X, W>) {
        if (block == 0) return multiply_block<kRows, true, 0>(x, slice, results);
        const Pass<float> copied{slice.copy, slice.depth * kParts, slice.sums, slice.copy,
                                 slice.next};
        if (block == 1) {
            return multiply_block<kRows, false, sizeof(W) / kParts>(x, copied, results);
        }
        return multiply_block<kRows, false, 0>(x, copied, results);
    } else {
        with_shares(block, num_blocks, [&](auto shares) {
            if constexpr (shares() == 0) {
                multiply_block<kRows, false, 0>(x, slice, results);
            } else {
                constexpr int kFetched = sizeof(W) / shares();
                multiply_block<kRows, false, kFetched>(x, slice.share(block, shares()), results);
            }
        });
    }
}

// y = x W^T for at most `kWaitingRows` rows `first .. last` and one panel.
template <class X, class W>
inline void multiply_slices(const Inputs<X>& x, const W* panel, int64_t depth, int64_t first,
                            int64_t last, PanelResults& results) {
    constexpr int64_t kStep = kSlice / kInputs<X, W>;
    alignas(64) float sums[kWaitingRows * kPanel];
    alignas(64) float copy[kCopies<X, W> ? kSlice * kPanel : 1];
    const RowBlocks<kPassRows> blocks(last - first);
    // once even without depth: the results are the bias then
    for (int64_t k = 0; k == 0 || k < depth; k += kStep) {
        const int64_t count = depth - k < kStep ? depth - k : kStep;
        const W* weight = panel + k * kPanel;
        const char* next = reinterpret_cast<const char*>(weight + count * kPanel);
        int64_t block = 0;
        blocks.for_each([&](auto rows, int64_t begin) {
            const int64_t row = first + begin;
            float* own = sums + begin * kPanel;
            const bool is_last = k + count == depth;
            const Pass<W> slice{weight, count, k == 0 ? nullptr : own, copy, next};
            multiply_slice<rows()>(x.from(row, k * kInputs<X, W>), slice, block++, blocks.size(),
                                   is_last ? results.of(row) : Results{own, kPanel});
            if (is_last) results.finish(row, rows());
        });
    }
}

// The same for any number of rows.
template <class X, class W>
inline void multiply(const Inputs<X>& x, const W* panel, int64_t depth, int64_t first, int64_t last,
                     PanelResults& results) {
    const int64_t parts = (last - first + kWaitingRows - 1) / kWaitingRows;
    for (int64_t part = 0; part < parts; ++part) {
        multiply_slices(x, panel, depth, first + (last - first) * part / parts,
                        first + (last - first) * (part + 1) / parts, results);
    }
}
