// Attention over the cells of one source. Included inside a namespace, after the vectors.

constexpr int kCells = 4;  // keys that share a load of a query
// From so many rows on, turning keys and copying values is less work than it saves.
constexpr int64_t kManyRows = 16;

// Keys or values of one tile and head: rows of `padded(head_size)`, which are widened to float32
// when they are loaded.
template <class C>
struct Cells {
    const C* row[kCopiedCells];
};

inline void round_cell(const float* x, int64_t size, BFloat16* cell) {
    for (int64_t d = 0; d < size; ++d) from_float(x[d], cell + d);
}

// Copies a query as float32, times `scale`, with zeros up to a whole vector.
template <class T>
inline void copy_query(const T* row, int64_t size, float scale, float* out) {
    const int64_t whole = size / kWidth * kWidth;
    const Vec vec_scale = broadcast(scale);
    for (int64_t d = 0; d < whole; d += kWidth) store(out + d, mul(load(row + d), vec_scale));
    for (int64_t d = whole; d < size; ++d) out[d] = to_float(row[d]) * scale;
    for (int64_t d = size; d < padded(size); ++d) out[d] = 0.0f;
}

// Points to the rows, or copies them with zeros up to whole vectors, which is a must if they are
// not. The first cell fills them up to whole groups of kCells.
template <class C>
inline Cells<C> tile_of(const C* data, int64_t stride, const int32_t* cell, int64_t num_cells,
                        int64_t size, bool copies, C* copy) {
    Cells<C> cells;
    for (int64_t u = 0; u < (num_cells + kCells - 1) / kCells * kCells; ++u) {
        cells.row[u] = data + int64_t{cell[u < num_cells ? u : 0]} * stride;
        if (!copies && size % kWidth == 0) continue;
        C* own = copy + u * padded(size);
        std::memcpy(own, cells.row[u], size * sizeof(C));
        std::memset(own + size, 0, (padded(size) - size) * sizeof(C));
        cells.row[u] = own;
    }
    return cells;
}

// Scores of kRows queries, one after another, against kCells keys.
template <int kRows, class C>
inline void score_cells(const float* query, const C* const* key, int64_t size, float* scores,
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

// out[r] += sum over u of weights[r][u] * value[u], for kVecs vectors from d on.
template <int kRows, int kVecs, class C>
inline void mix_values(const float* weights, int64_t weights_stride, const Cells<C>& values,
                       int64_t num_cells, int64_t size, int64_t d, float* out) {
    Vec acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) acc[r][i] = load(out + r * size + d + i * kWidth);
    }
    for (int64_t u = 0; u < num_cells; ++u) {
        const C* value = values.row[u] + d;
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

template <int kRows, class C>
inline void mix_values(const float* weights, int64_t weights_stride, const Cells<C>& values,
                       int64_t num_cells, int64_t size, float* out) {
    int64_t d = 0;
    for (; d + 4 * kWidth <= size; d += 4 * kWidth) {
        mix_values<kRows, 4>(weights, weights_stride, values, num_cells, size, d, out);
    }
    for (; d + 2 * kWidth <= size; d += 2 * kWidth) {
        mix_values<kRows, 2>(weights, weights_stride, values, num_cells, size, d, out);
    }
    for (; d < size; d += kWidth) {
        mix_values<kRows, 1>(weights, weights_stride, values, num_cells, size, d, out);
    }
}

// Where one task finds its inputs. Its queries are (key head, row of the task) pairs, heads
// outermost; a row of the task is a pair of a row and a head that reads the key head. T is the type
// of queries and results, C that of cells.
template <class T, class C>
struct TaskView {
    TaskView(const TreeAttentionParams& params, const AttendTask& task)
        : params(params),
          task(task),
          slot(params.slot[task.source]),
          group(params.num_heads / params.num_key_heads),
          cell(params.cell + slot * params.max_cells),
          trunk(params.path == nullptr ? 0 : params.trunk[task.source]),
          num_cells(params.num_common(slot) + trunk),
          path_length(params.path == nullptr ? 0 : params.path_length[slot] - trunk),
          num_rows(task.last - task.first),
          num_heads(task.last_head - task.first_head),
          next_cell(params.cell + params.slot[task.next_source] * params.max_cells),
          num_next_cells(task.next_source == task.source
                             ? 0
                             : params.num_cells[params.slot[task.next_source]]) {}

    int64_t row(int64_t i) const { return params.offset[task.source] + (task.first + i) / group; }
    int64_t head(int64_t h, int64_t i) const {
        return (task.first_head + h) * group + (task.first + i) % group;
    }
    const T* query(int64_t h, int64_t i) const {
        return static_cast<const T*>(params.query) + row(i) * params.query_row_stride +
               head(h, i) * params.query_head_stride;
    }
    const C* key(int64_t h) const {
        return static_cast<const C*>(params.key) + (task.first_head + h) * params.key_head_stride;
    }
    const C* value(int64_t h) const {
        return static_cast<const C*>(params.value) +
               (task.first_head + h) * params.value_head_stride;
    }
    T* out(int64_t h, int64_t i) const {
        return static_cast<T*>(params.out) +
               (row(i) * params.num_heads + head(h, i)) * params.head_size;
    }
    // The path of the row of query i, behind the trunk.
    const int32_t* path(int64_t i) const {
        const int64_t line = slot * params.max_entries + params.entry[row(i)];
        return params.path + line * params.max_path + trunk;
    }
    // The cells that paths name by their places.
    const int32_t* path_cells() const { return cell + num_cells - trunk; }
    // Where cells are in order: leaves those that a row of the task sees, from a whole tile on, so
    // that sums have one order in every task.
    void leave_seen() {
        int64_t low = num_cells, high = 0;
        for (int64_t i = 0; i < num_rows; ++i) {
            const int64_t position = params.position[row(i)];
            low = std::min(low, position);
            high = std::max(high, position);
        }
        const int64_t first = params.window == 0 ? 0 : low - params.window + 1;
        first_cell = std::max<int64_t>(first, 0) / kTileCells * kTileCells;
        cell += first_cell;
        num_cells = high + 1 - first_cell;
    }
    bool has_many_rows() const { return num_rows >= kManyRows; }
    int64_t tile_size(int64_t begin, int64_t most) const {
        return begin + most < num_cells ? most : num_cells - begin;
    }

    const TreeAttentionParams& params;
    const AttendTask& task;
    int64_t slot, group;
    const int32_t* cell;
    int64_t trunk;        // nodes with which all paths begin, first in the tree's list
    int64_t num_cells;    // that rows read together, the trunk too
    int64_t path_length;  // cells that each row reads for itself
    int64_t num_rows, num_heads;
    const int32_t* next_cell;  // cells of the next source
    int64_t num_next_cells;
    int64_t first_cell = 0;  // place of `cell` in its line
};

// Fetches what a head has in these cells. Hardware does not know where the next ones lie.
template <class C>
inline void fetch_cells(const C* data, int64_t stride, const int32_t* cell, int64_t num_cells,
                        int64_t head_size) {
    constexpr int64_t kLine = 64 / sizeof(C);
    for (int64_t u = 0; u < num_cells; ++u) {
        for (int64_t d = 0; d < head_size; d += kLine) {
            __builtin_prefetch(data + cell[u] * stride + d, 0, 2);
        }
    }
}

// scores[query][u] of all cells, for many rows.
template <class T, class C>
inline void score_many(const TaskView<T, C>& view, const float* query, float* turned, float* scores,
                       int64_t stride) {
    const int64_t size = padded(view.params.head_size);
    const RowBlocks<kTurnedRows> blocks(view.num_rows);
    for (int64_t h = 0; h < view.num_heads; ++h) {
        const float* head_query = query + h * view.num_rows * size;
        for (int64_t begin = 0; begin < view.num_cells; begin += kWidth) {
            turn_keys(view.key(h), view.params.key_cell_stride, view.cell + begin,
                      view.num_cells - begin, view.params.head_size, turned);
            float* own_scores = scores + h * view.num_rows * stride + begin;
            blocks.for_each([&](auto rows, int64_t first) {
                score_turned<rows()>(head_query + first * size, turned, size,
                                     own_scores + first * stride, stride);
            });
        }
    }
}

// The same for any number of rows. Values are fetched meanwhile.
template <class T, class C>
inline void score_all(const TaskView<T, C>& view, const RowBlocks<kMaxRows>& blocks,
                      const float* query, C* copy, float* scores, int64_t stride) {
    if (view.has_many_rows()) {
        return score_many(view, query, reinterpret_cast<float*>(copy), scores, stride);
    }
    const int64_t size = padded(view.params.head_size);
    for (int64_t begin = 0; begin < view.num_cells; begin += kTileCells) {
        const int64_t num_cells = view.tile_size(begin, kTileCells);
        for (int64_t h = 0; h < view.num_heads; ++h) {
            const Cells<C> keys =
                tile_of(view.key(h), view.params.key_cell_stride, view.cell + begin, num_cells,
                        view.params.head_size, false, copy);
            const float* head_query = query + h * view.num_rows * size;
            float* head_scores = scores + h * view.num_rows * stride + begin;
            for (int64_t u = 0; u < num_cells; u += kCells) {
                fetch_cells(view.value(h), view.params.value_cell_stride, view.cell + begin + u,
                            std::min<int64_t>(kCells, num_cells - u), view.params.head_size);
                blocks.for_each([&](auto rows, int64_t first) {
                    score_cells<rows()>(head_query + first * size, keys.row + u, size,
                                        head_scores + first * stride + u, stride);
                });
            }
        }
    }
}

// out[query] = sum over u of weights[query][u] * value[u]. Keys of the next source are fetched
// meanwhile.
template <class T, class C>
inline void mix_all(const TaskView<T, C>& view, const RowBlocks<kMaxRows>& blocks,
                    const float* weights, int64_t stride, C* copy, float* out) {
    const int64_t size = padded(view.params.head_size);
    const int64_t out_size = view.num_heads * view.num_rows * size;
    const int64_t tile_cells = view.has_many_rows() ? kCopiedCells : kTileCells;
    for (int64_t i = 0; i < out_size; i += kWidth) store(out + i, broadcast(0.0f));
    for (int64_t begin = 0; begin < view.num_cells; begin += tile_cells) {
        const int64_t num_cells = view.tile_size(begin, tile_cells);
        for (int64_t h = 0; h < view.num_heads; ++h) {
            const Cells<C> values =
                tile_of(view.value(h), view.params.value_cell_stride, view.cell + begin, num_cells,
                        view.params.head_size, view.has_many_rows(), copy);
            const float* head_weights = weights + h * view.num_rows * stride + begin;
            float* head_out = out + h * view.num_rows * size;
            fetch_cells(view.key(h), view.params.key_cell_stride, view.next_cell + begin,
                        std::min(tile_cells, view.num_next_cells - begin), view.params.head_size);
            blocks.for_each([&](auto rows, int64_t first) {
                mix_values<rows()>(head_weights + first * stride, stride, values, num_cells, size,
                                   head_out + first * size);
            });
        }
    }
}

// Copies the queries of a task as float32, times the scale.
template <class T, class C>
inline void copy_queries(const TaskView<T, C>& view, float* query) {
    const int64_t head_size = view.params.head_size, size = padded(head_size);
    for (int64_t h = 0; h < view.num_heads; ++h) {
        for (int64_t i = 0; i < view.num_rows; ++i) {
            copy_query(view.query(h, i), head_size, view.params.scale,
                       query + (h * view.num_rows + i) * size);
        }
    }
}

// Copies the positions of the cells that rows read together, if anything asks for them.
template <class T, class C>
inline void read_positions(const TaskView<T, C>& view, int32_t* cell_position) {
    if (!view.params.reads_positions()) return;
    for (int64_t u = 0; u < view.num_cells; ++u) {
        cell_position[u] = view.params.in_order ? static_cast<int32_t>(view.first_cell + u)
                                                : view.params.cell_position[view.cell[u]];
    }
}

// Caps scores of query q, adds biases and hides what is too far away.
template <class T, class C>
inline void change_scores(const TaskView<T, C>& view, int64_t q, const int32_t* cell_position,
                          int64_t num_cells, float* scores) {
    const TreeAttentionParams& params = view.params;
    const int64_t i = q % view.num_rows, row = view.row(i);
    if (params.soft_cap != 0.0f) soft_cap(params.soft_cap, num_cells, scores);
    if (params.bias != nullptr) {
        add_biases(params, view.head(q / view.num_rows, i), params.position[row], cell_position,
                   num_cells, scores);
    }
    if (params.in_order) {
        hide_others(params.window, params.position[row] - view.first_cell, num_cells, scores);
    } else if (params.window != 0) {
        hide_far_cells(params.window, params.position[row], cell_position, num_cells, scores);
    }
}

// Writes weighted sums of values, each times the inverse of its weights' sum.
template <class T, class C>
inline void write_results(const TaskView<T, C>& view, const float* inverse, const float* out) {
    const int64_t head_size = view.params.head_size, size = padded(head_size);
    for (int64_t h = 0; h < view.num_heads; ++h) {
        for (int64_t i = 0; i < view.num_rows; ++i) {
            const int64_t q = h * view.num_rows + i;
            T* result = view.out(h, i);
            for (int64_t d = 0; d < head_size; ++d) {
                from_float(out[q * size + d] * inverse[q], result + d);
            }
        }
    }
}

template <class T, class C>
void attend(const TreeAttentionParams& params, const AttendTask& task, float* scratch) {
    TaskView<T, C> view(params, task);
    if (params.in_order) view.leave_seen();
    const int64_t size = padded(params.head_size), stride = padded(view.num_cells);
    const int64_t num_queries = view.num_heads * view.num_rows;
    float* query = scratch;
    float* out = query + num_queries * size;
    float* scores = out + num_queries * size + kCopiedCells * size;
    int32_t* cell_position = reinterpret_cast<int32_t*>(scores + num_queries * stride);
    C* copy = reinterpret_cast<C*>(out + num_queries * size);
    copy_queries(view, query);
    read_positions(view, cell_position);
    const RowBlocks<kMaxRows> blocks(view.num_rows);
    score_all(view, blocks, query, copy, scores, stride);
    // the queries are no longer needed; the inverse sums take their place
    for (int64_t q = 0; q < num_queries; ++q) {
        float* row_scores = scores + q * stride;
        change_scores(view, q, cell_position, view.num_cells, row_scores);
        if (params.mask != nullptr) {
            const int32_t entry = params.entry[view.row(q % view.num_rows)];
            hide_cells(params, view.slot, entry, view.num_cells, row_scores);
        }
        query[q] = exp_scores(row_scores, view.num_cells);
    }
    mix_all(view, blocks, scores, stride, copy, out);
    write_results(view, query, out);
}
