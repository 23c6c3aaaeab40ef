// Scores of many queries against a vector of cells. Keys are turned first: a vector then holds one
// number of neighbouring cells, and no sum runs across a vector. Every score is summed in the order
// of `score_cells`, so it has the same bits. Included inside a namespace, after the vectors.

static_assert(kWidth <= kCopiedCells);

// The first `count` numbers of a key as float32, and zeros behind them.
template <class C>
inline Vec load_key(const C* key, int64_t count) {
    if (count >= kWidth) return load(key);
    C block[kWidth] = {};
    std::memcpy(block, key, count * sizeof(C));
    return load(block);
}

// Copies keys of at most kWidth cells to turned[number][cell]. The first cell stands in for others.
template <class C>
inline void turn_keys(const C* data, int64_t stride, const int32_t* cell, int64_t num_cells,
                      int64_t head_size, float* turned) {
    const C* key[kWidth];
    for (int i = 0; i < kWidth; ++i) key[i] = data + int64_t{cell[i < num_cells ? i : 0]} * stride;
    for (int64_t d = 0; d < head_size; d += kWidth) {
        Vec square[kWidth];
        for (int i = 0; i < kWidth; ++i) square[i] = load_key(key[i] + d, head_size - d);
        transpose(square);
        for (int i = 0; i < kWidth; ++i) store(turned + (d + i) * kWidth, square[i]);
    }
}

// A vector of cells for each of kRows queries.
template <int kRows>
struct Block {
    Vec row[kRows];
};

template <int kRows>
inline Block<kRows> add(const Block<kRows>& a, const Block<kRows>& b) {
    Block<kRows> both;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) both.row[r] = add(a.row[r], b.row[r]);
    return both;
}

// Scores of kRows queries, one after another, against turned keys.
template <int kRows>
inline void score_turned(const float* query, const float* turned, int64_t size, float* scores,
                         int64_t scores_stride) {
    // what lane `first` of the vectors of `score_cells` sums
    const auto lane = [&](int first) __attribute__((always_inline)) {
        Block<kRows> sums;
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums.row[r] = broadcast(0.0f);
#pragma GCC unroll 4
        for (int64_t d = first; d < size; d += kWidth) {
            const Vec key = load(turned + d * kWidth);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                sums.row[r] = fma(broadcast(query[r * size + d]), key, sums.row[r]);
            }
        }
        return sums;
    };
    const Block<kRows> total = sum_lanes(lane);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(scores + r * scores_stride, total.row[r]);
}
