// Attention over the cells of one source for one key head. Included inside a namespace, after the
// vectors.

constexpr int kCells = 4;  // keys that share a load of a query

inline int64_t padded(int64_t size) { return (size + kWidth - 1) / kWidth * kWidth; }

// Keys or values of one source and head as float32 rows of `padded(head_size)`.
struct Cells {
    const float* data;
    int64_t stride;
    const int32_t* cell;  // null: numbered as they are
};

inline const float* at(const Cells& cells, int64_t u) {
    return cells.data + (cells.cell == nullptr ? u : int64_t{cells.cell[u]}) * cells.stride;
}

// One row as float32, times `scale`, with zeros up to a whole vector.
template <class T>
inline void copy_row(const T* row, int64_t size, float scale, float* out) {
    const int64_t whole = size / kWidth * kWidth;
    const Vec vec_scale = broadcast(scale);
    for (int64_t d = 0; d < whole; d += kWidth) store(out + d, mul(load(row + d), vec_scale));
    for (int64_t d = whole; d < size; ++d) out[d] = to_float(row[d]) * scale;
    for (int64_t d = size; d < padded(size); ++d) out[d] = 0.0f;
}

template <class T>
inline Cells copy_cells(const T* data, int64_t stride, const int32_t* cell, int64_t num_cells,
                        int64_t size, float* copy) {
    for (int64_t u = 0; u < num_cells; ++u) {
        copy_row(data + int64_t{cell[u]} * stride, size, 1.0f, copy + u * padded(size));
    }
    return Cells{copy, padded(size), nullptr};
}

inline Cells copy_cells(const float* data, int64_t stride, const int32_t* cell, int64_t num_cells,
                        int64_t size, float* copy) {
    if (size % kWidth == 0) return Cells{data, stride, cell};
    return copy_cells<float>(data, stride, cell, num_cells, size, copy);
}

// Rows in blocks of even height: 5 rows are 3 and 2, not 4 and 1.
struct RowBlocks {
    explicit RowBlocks(int64_t rows) : num_rows(rows) {
        const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
        height = blocks == 0 ? 0 : (rows + blocks - 1) / blocks;
        num_higher = rows - blocks * (height - 1);
    }

    int64_t num_rows;
    int64_t height;  // of the first `num_higher` blocks; the others have one row less
    int64_t num_higher;
};

// Calls body(rows, first) for every block, with `rows` a std::integral_constant.
template <class Body>
inline void for_each_block(const RowBlocks& blocks, const Body& body) {
    int64_t left = blocks.num_higher;
    for (int64_t first = 0; first < blocks.num_rows; --left) {
        const int64_t rows = left > 0 ? blocks.height : blocks.height - 1;
        switch (rows) {
            case 1:
                body(std::integral_constant<int, 1>(), first);
                break;
            case 2:
                body(std::integral_constant<int, 2>(), first);
                break;
            case 3:
                body(std::integral_constant < int, kMaxRows<3 ? 1 : 3>(), first);
                break;
            case 4:
                body(std::integral_constant < int, kMaxRows<4 ? 1 : 4>(), first);
                break;
        }
        first += rows;
    }
}

// Scores of kRows queries, one after another, against kCells keys.
template <int kRows>
inline void score_cells(const float* query, const float* const* key, int64_t size, float* scores,
                        int64_t scores_stride) {
    Vec acc[kRows][kCells];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kCells; ++c) acc[r][c] = broadcast(0.0f);
    }
    for (int64_t d = 0; d < size; d += kWidth) {
        Vec k[kCells];
        for (int c = 0; c < kCells; ++c) k[c] = load(key[c] + d);
        for (int r = 0; r < kRows; ++r) {
            const Vec q = load(query + r * size + d);
            for (int c = 0; c < kCells; ++c) acc[r][c] = fma(q, k[c], acc[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        store_sums(scores + r * scores_stride, acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    }
}

// out[r] += sum over cells `begin .. end` of weights[r][u] * value[u], for kVecs vectors from d on.
template <int kRows, int kVecs>
inline void mix_values(const float* weights, int64_t weights_stride, const Cells& values,
                       int64_t begin, int64_t end, int64_t size, int64_t d, float* out) {
    Vec acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) acc[r][i] = load(out + r * size + d + i * kWidth);
    }
    for (int64_t u = begin; u < end; ++u) {
        const float* value = at(values, u) + d;
        Vec v[kVecs];
        for (int i = 0; i < kVecs; ++i) v[i] = load(value + i * kWidth);
        for (int r = 0; r < kRows; ++r) {
            const Vec weight = broadcast(weights[r * weights_stride + u]);
            for (int i = 0; i < kVecs; ++i) acc[r][i] = fma(weight, v[i], acc[r][i]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) store(out + r * size + d + i * kWidth, acc[r][i]);
    }
}

template <int kRows>
inline void mix_values(const float* weights, int64_t weights_stride, const Cells& values,
                       int64_t begin, int64_t end, int64_t size, float* out) {
    int64_t d = 0;
    for (; d + 4 * kWidth <= size; d += 4 * kWidth) {
        mix_values<kRows, 4>(weights, weights_stride, values, begin, end, size, d, out);
    }
    for (; d + 2 * kWidth <= size; d += 2 * kWidth) {
        mix_values<kRows, 2>(weights, weights_stride, values, begin, end, size, d, out);
    }
    for (; d < size; d += kWidth) {
        mix_values<kRows, 1>(weights, weights_stride, values, begin, end, size, d, out);
    }
}

// Hides the cells that entry `bit` of the beam does not see.
inline void hide_cells(const TreeAttentionParams& params, int64_t slot, int32_t bit,
                       int64_t num_cells, float* scores) {
    const int64_t words = params.mask_words;
    const int64_t* mask = params.mask + slot * params.max_cells * words + bit / 64;
    const int shift = bit % 64;
    if (words == 1) {  // a unit stride, which the compiler can vectorise
        for (int64_t u = 0; u < num_cells; ++u) {
            scores[u] = (mask[u] >> shift & 1) != 0 ? scores[u] : -INFINITY;
        }
    } else {
        for (int64_t u = 0; u < num_cells; ++u) {
            scores[u] = (mask[u * words] >> shift & 1) != 0 ? scores[u] : -INFINITY;
        }
    }
}

// Turns scores into exp(score - peak) and returns the inverse of their sum, 0 if no cell is
// visible.
inline float exp_scores(float* scores, int64_t num_cells) {
    for (int64_t u = num_cells; u < padded(num_cells); ++u) scores[u] = -INFINITY;
    Vec top = broadcast(-INFINITY);
    for (int64_t u = 0; u < num_cells; u += kWidth) top = max(load(scores + u), top);
    const float peak = largest(top);
    const Vec vec_peak = broadcast(peak == -INFINITY ? 0.0f : peak);
    Vec total = broadcast(0.0f);
    for (int64_t u = 0; u < num_cells; u += kWidth) {
        const Vec weight = exp_nonpositive(sub(load(scores + u), vec_peak));
        store(scores + u, weight);
        total = add(total, weight);
    }
    const float total_weight = sum(total);
    return total_weight == 0.0f ? 0.0f : 1.0f / total_weight;
}

// Asks for a row before it is needed: cells are scattered, so the processor cannot guess.
inline void prefetch(const Cells& cells, int64_t u, int64_t num_cells, int64_t size) {
    if (u >= num_cells) return;
    const float* row = at(cells, u);
    for (int64_t d = 0; d < size; d += 16) __builtin_prefetch(row + d);
}

// Each key is read once for all rows, and while it is, its value is fetched.
inline void score_rows(const float* query, const RowBlocks& blocks, const Cells& keys,
                       const Cells& values, int64_t num_cells, int64_t size, float* scores,
                       int64_t stride) {
    constexpr int64_t kAhead = 4 * kCells;
    for (int64_t u = 0; u < num_cells; u += kCells) {
        const float* key[kCells];
        for (int c = 0; c < kCells; ++c) {
            key[c] = at(keys, u + c < num_cells ? u + c : u);
            prefetch(keys, u + c + kAhead, num_cells, size);
            prefetch(values, u + c, num_cells, size);
        }
        for_each_block(blocks, [&](auto rows, int64_t first) {
            score_cells<rows()>(query + first * size, key, size, scores + first * stride + u,
                                stride);
        });
    }
}

// In tiles of cells, so that the values of a tile stay near while all rows read them.
inline void mix_rows(const float* weights, const RowBlocks& blocks, const Cells& values,
                     int64_t num_cells, int64_t size, float* out, int64_t stride) {
    constexpr int64_t kTile = 16;
    for (int64_t i = 0; i < blocks.num_rows * size; i += kWidth) store(out + i, broadcast(0.0f));
    for (int64_t begin = 0; begin < num_cells; begin += kTile) {
        const int64_t end = begin + kTile < num_cells ? begin + kTile : num_cells;
        for_each_block(blocks, [&](auto rows, int64_t first) {
            mix_values<rows()>(weights + first * stride, stride, values, begin, end, size,
                               out + first * size);
        });
    }
}

template <class T>
void attend(const TreeAttentionParams& params, int64_t source, int64_t key_head, int64_t first,
            int64_t last, float* scratch) {
    const int64_t slot = params.slot[source];
    const int64_t num_cells = params.num_cells[slot], stride = padded(num_cells);
    const int64_t size = padded(params.head_size), num_rows = last - first;
    const int64_t group = params.num_heads / params.num_key_heads;
    const int32_t* cell = params.cell + slot * params.max_cells;
    float* query = scratch;
    float* out = query + num_rows * size;
    float* scores = out + num_rows * size;
    float* copies = scores + num_rows * stride;
    const Cells keys =
        copy_cells(static_cast<const T*>(params.key) + key_head * params.key_head_stride,
                   params.key_cell_stride, cell, num_cells, params.head_size, copies);
    const Cells values = copy_cells(
        static_cast<const T*>(params.value) + key_head * params.value_head_stride,
        params.value_cell_stride, cell, num_cells, params.head_size, copies + num_cells * size);
    const auto row_of = [&](int64_t i) { return params.offset[source] + (first + i) / group; };
    const auto head_of = [&](int64_t i) { return key_head * group + (first + i) % group; };
    for (int64_t i = 0; i < num_rows; ++i) {
        copy_row(static_cast<const T*>(params.query) + row_of(i) * params.query_row_stride +
                     head_of(i) * params.query_head_stride,
                 params.head_size, params.scale, query + i * size);
    }
    const RowBlocks blocks(num_rows);
    score_rows(query, blocks, keys, values, num_cells, size, scores, stride);
    // the queries are done with, their place takes the inverse sums
    for (int64_t i = 0; i < num_rows; ++i) {
        float* row_scores = scores + i * stride;
        if (params.mask != nullptr) {
            hide_cells(params, slot, params.bit[row_of(i)], num_cells, row_scores);
        }
        query[i] = exp_scores(row_scores, num_cells);
    }
    mix_rows(scores, blocks, values, num_cells, size, out, stride);
    for (int64_t i = 0; i < num_rows; ++i) {
        T* result = static_cast<T*>(params.out) +
                    (row_of(i) * params.num_heads + head_of(i)) * params.head_size;
        for (int64_t d = 0; d < params.head_size; ++d) {
            from_float(out[i * size + d] * query[i], result + d);
        }
    }
}
