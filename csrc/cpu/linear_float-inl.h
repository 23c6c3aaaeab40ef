// Products of rows with a panel of packed float weights. Included inside a namespace, after the
// vectors.
//
// Every sum is one chain over the depth in order, whatever rows, slices and tasks are, so a row's
// result does not depend on the rows beside it.

// Depth of a slice of a panel: 96 numbers of 64 columns are 24 kB of float32, which stay in the
// first-level cache while all rows are multiplied by them.
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

// A slice of a panel, and the one that follows it in memory, which is fetched meanwhile.
template <class W>
struct Slice {
    const W* weight;
    int64_t depth;
    const char* next;
};

// The weights of a vector of columns that number `part` of a row's `kInputs` is multiplied by.
template <class X, class W>
inline auto load_weights(const W* weight, int part) {
    if constexpr (kInputs<X, W> == 2) {
        return part == 0 ? even(load(weight)) : odd(load(weight));
    } else {
        return load(weight);
    }
}

// sums += x W^T for kRows rows and kVecs vectors of columns, or sums = x W^T if they begin. `copy`
// gets the weights if it is not null.
template <int kRows, int kVecs, bool kKeeps, class X, class W>
inline void multiply_pass(const Inputs<X>& x, const Slice<W>& slice, bool begins, float* sums,
                          float* copy) {
    constexpr int kStep = kInputs<X, W>;
    constexpr int64_t kBytes = kVecs * kWidth * sizeof(W);
    constexpr int64_t kFetched = kVecs * kWidth < kPanel ? kBytes : 0;
    Vec acc[kRows][kVecs];
    const X* row[kRows];
    for (int r = 0; r < kRows; ++r) {
        row[r] = x.data + r * x.stride;
        for (int c = 0; c < kVecs; ++c) {
            acc[r][c] = begins ? broadcast(0.0f) : load(sums + r * kPanel + c * kWidth);
        }
    }
    for (int64_t k = 0; k < slice.depth; ++k) {
        for (int part = 0; part < kStep; ++part) {
            const int64_t input = k * kStep + part;
            decltype(load_weights<X>(slice.weight, 0)) weight[kVecs];
            for (int c = 0; c < kVecs; ++c) {
                weight[c] = load_weights<X>(slice.weight + k * kPanel + c * kWidth, part);
                if constexpr (kKeeps) store(copy + input * kPanel + c * kWidth, weight[c]);
            }
            for (int r = 0; r < kRows; ++r) {
                const auto value = broadcast(row[r][input]);
                for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(value, weight[c], acc[r][c]);
            }
        }
        // hardware does not follow a narrow pass, which jumps from line to line
        for (int64_t i = 0; i < kFetched; i += 64) {
            __builtin_prefetch(slice.next + k * kBytes + i, 0, 2);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kVecs; ++c) store(sums + r * kPanel + c * kWidth, acc[r][c]);
    }
}

// The same for all columns of a panel.
template <int kRows, bool kKeeps, class X, class W>
inline void multiply_block(const Inputs<X>& x, const Slice<W>& slice, bool begins, float* sums,
                           float* copy) {
    constexpr int kVecs = pass_vecs(kRows);
    for (int64_t c = 0; c < kPanel; c += kVecs * kWidth) {
        const int64_t fetched = slice.depth * c * sizeof(W);
        const Slice<W> part{slice.weight + c, slice.depth, slice.next + fetched};
        multiply_pass<kRows, kVecs, kKeeps>(x, part, begins, sums + c, copy + c);
    }
}

// Fetches inputs of rows, because hardware does not follow rows that lie far apart.
template <class X>
inline void fetch(const Inputs<X>& x, int64_t num_rows, int64_t depth) {
    for (int64_t r = 0; r < num_rows; ++r) {
        const X* row = x.data + r * x.stride;
        for (int64_t k = 0; k < depth; k += 64 / sizeof(X)) __builtin_prefetch(row + k, 0, 2);
    }
}

// Calls finish(first, rows, sums) for blocks of at most `kWaitingRows` rows of x with all their
// sums, where x W^T is that of one panel.
template <class X, class W, class Finish>
inline void multiply_slices(const Inputs<X>& x, int64_t num_rows, const W* panel, int64_t depth,
                            const Finish& finish) {
    constexpr int64_t kStep = kSlice / kInputs<X, W>;
    alignas(64) float sums[kWaitingRows * kPanel];
    alignas(64) float copy[kCopies<X, W> ? kSlice * kPanel : 1];
    const RowBlocks<kPassRows> blocks(num_rows);
    for (int64_t k = 0; k < depth; k += kStep) {
        const int64_t count = depth - k < kStep ? depth - k : kStep;
        const W* weight = panel + k * kPanel;
        const Slice<W> slice{weight, count, reinterpret_cast<const char*>(weight + count * kPanel)};
        blocks.for_each([&](auto rows, int64_t first) {
            const auto block = x.from(first, k * kInputs<X, W>);
            if (first + rows() < num_rows)
                fetch(x.from(first + rows(), k * kInputs<X, W>), rows(), count * kInputs<X, W>);
            float* own = sums + first * kPanel;
            if constexpr (kCopies<X, W>) {
                if (first == 0 && rows() < num_rows) {
                    multiply_block<rows(), true>(block, slice, k == 0, own, copy);
                } else if (first > 0) {
                    const Slice<float> copied{copy, count * kInputs<X, W>, nullptr};
                    multiply_block<rows(), false>(block, copied, k == 0, own, copy);
                } else {
                    multiply_block<rows(), false>(block, slice, k == 0, own, copy);
                }
            } else {
                multiply_block<rows(), false>(block, slice, k == 0, own, copy);
            }
            if (k + count == depth) finish(first, rows(), own);
        });
    }
}

// The same for any number of rows.
template <class X, class W, class Finish>
inline void multiply(const Inputs<X>& x, int64_t num_rows, const W* panel, int64_t depth,
                     const Finish& finish) {
    const int64_t parts = (num_rows + kWaitingRows - 1) / kWaitingRows;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = num_rows * part / parts, end = num_rows * (part + 1) / parts;
        multiply_slices(
            x.from(begin, 0), end - begin, panel, depth,
            [&](int64_t first, int64_t rows, float* sums) { finish(begin + first, rows, sums); });
    }
}
