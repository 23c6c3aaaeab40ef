// Attention of rows that have paths: first the cells that all rows see and the nodes with which all
// paths begin, read once for a block of rows, then the other cells of each row's own path. Sums run
// in the order of the source's list of cells, lane by lane, as they do with masks. Included inside
// a namespace, after tree_attention-inl.h.

// The cells of a row's path that fit a tile.
struct PathTile {
    template <class T, class C>
    PathTile(const TaskView<T, C>& view, const int32_t* path, int64_t begin)
        : begin(begin), size(std::min(kTileCells, view.path_length - begin)) {
        for (int64_t u = 0; u < size; ++u) {
            // what stands in for a cell that is not seen has weight 0
            const int32_t place = std::max(path[begin + u], 0);
            cell[u] = view.path_cells()[place];
        }
    }

    int32_t cell[kTileCells];
    int64_t begin, size;
};

// Calls body(rows, i, path) for blocks of queries i .. i + rows of one key head that share a path.
template <class T, class C, class Body>
inline void for_paths(const TaskView<T, C>& view, const Body& body) {
    for (int64_t i = 0; i < view.num_rows;) {
        const int64_t left = view.group - (view.task.first + i) % view.group;
        const int64_t rows = std::min(left, view.num_rows - i);
        const int32_t* path = view.path(i);
        RowBlocks<kMaxRows>(rows).for_each(
            [&](auto constant, int64_t first) { body(constant, i + first, path); });
        i += rows;
    }
}

// scores[query][t] of the cells of each row's path.
template <class T, class C>
inline void score_paths(const TaskView<T, C>& view, const float* query, C* copy, float* scores,
                        int64_t stride) {
    const int64_t size = padded(view.params.head_size);
    for_paths(view, [&](auto rows, int64_t i, const int32_t* path) {
        for (int64_t begin = 0; begin < view.path_length; begin += kTileCells) {
            const PathTile tile(view, path, begin);
            for (int64_t h = 0; h < view.num_heads; ++h) {
                const Cells<C> keys = tile_of(view.key(h), view.params.key_cell_stride, tile.cell,
                                              tile.size, view.params.head_size, false, copy);
                const int64_t q = h * view.num_rows + i;
                for (int64_t u = 0; u < tile.size; u += kCells) {
                    score_cells<rows()>(query + q * size, keys.row + u, size,
                                        scores + q * stride + begin + u, stride);
                }
            }
        }
    });
}

// out[query] += sum over t of weights[query][t] * value of the t-th cell of the row's path.
template <class T, class C>
inline void mix_paths(const TaskView<T, C>& view, const float* weights, int64_t stride, C* copy,
                      float* out) {
    const int64_t size = padded(view.params.head_size);
    for_paths(view, [&](auto rows, int64_t i, const int32_t* path) {
        for (int64_t begin = 0; begin < view.path_length; begin += kTileCells) {
            const PathTile tile(view, path, begin);
            for (int64_t h = 0; h < view.num_heads; ++h) {
                const Cells<C> values =
                    tile_of(view.value(h), view.params.value_cell_stride, tile.cell, tile.size,
                            view.params.head_size, false, copy);
                const int64_t q = h * view.num_rows + i;
                mix_values<rows()>(weights + q * stride + begin, stride, values, tile.size, size,
                                   out + q * size);
            }
        }
    });
}

// Turns scores of the cells that rows read together, and behind them of a path, into
// exp(score - peak). Returns the inverse of their sum, 0 if no cell is visible.
template <class T, class C>
inline float exp_path_scores(const TaskView<T, C>& view, const int32_t* path, float* scores) {
    const int64_t num_cells = view.num_cells, length = view.path_length;
    const int64_t common = padded(num_cells), end = common + padded(length);
    for (int64_t u = num_cells; u < common; ++u) scores[u] = -INFINITY;
    for (int64_t t = 0; t < length; ++t) {
        if (path[t] < 0) scores[common + t] = -INFINITY;
    }
    for (int64_t u = common + length; u < end; ++u) scores[u] = -INFINITY;
    Vec top = broadcast(-INFINITY);
    for (int64_t u = 0; u < end; u += kWidth) top = max(load(scores + u), top);
    const float peak = largest(top);
    const Vec vec_peak = broadcast(peak == -INFINITY ? 0.0f : peak);
    Vec total = broadcast(0.0f);
    for (int64_t u = 0; u < end; u += kWidth) {
        const Vec weight = exp_nonpositive(sub(load(scores + u), vec_peak));
        store(scores + u, weight);
        if (u < common) total = add(total, weight);
    }
    // each weight belongs to the lane in which its cell stands in the source's list
    float lanes[kWidth];
    store(lanes, total);
    for (int64_t t = 0; t < length; ++t) {
        if (path[t] < 0) continue;
        lanes[(num_cells - view.trunk + path[t]) % kWidth] += scores[common + t];
    }
    const float total_weight = sum(load(lanes));
    return total_weight == 0.0f ? 0.0f : 1.0f / total_weight;
}

// The same of the cells of a path.
template <class T, class C>
inline void read_positions(const TaskView<T, C>& view, const int32_t* path,
                           int32_t* cell_position) {
    if (view.params.cell_position == nullptr) return;
    for (int64_t t = 0; t < view.path_length; ++t) {
        const int32_t cell = view.path_cells()[std::max(path[t], 0)];
        cell_position[t] = view.params.cell_position[cell];
    }
}

template <class T, class C>
void attend_paths(const TreeAttentionParams& params, const AttendTask& task, float* scratch) {
    const TaskView<T, C> view(params, task);
    const int64_t size = padded(params.head_size), common = padded(view.num_cells);
    const int64_t stride = common + padded(view.path_length);
    const int64_t num_queries = view.num_heads * view.num_rows;
    float* query = scratch;
    float* out = query + num_queries * size;
    float* scores = out + num_queries * size + kCopiedCells * size;
    C* copy = reinterpret_cast<C*>(out + num_queries * size);
    int32_t* cell_position = reinterpret_cast<int32_t*>(scores + num_queries * stride);
    int32_t* own_position = cell_position + view.num_cells;
    copy_queries(view, query);
    read_positions(view, cell_position);
    const RowBlocks<kMaxRows> blocks(view.num_rows);
    score_all(view, blocks, query, copy, scores, stride);
    score_paths(view, query, copy, scores + common, stride);
    // the queries are no longer needed; the inverse sums take their place
    for (int64_t q = 0; q < num_queries; ++q) {
        const int32_t* path = view.path(q % view.num_rows);
        float* row_scores = scores + q * stride;
        read_positions(view, path, own_position);
        change_scores(view, q, cell_position, view.num_cells, row_scores);
        change_scores(view, q, own_position, view.path_length, row_scores + common);
        query[q] = exp_path_scores(view, path, row_scores);
    }
    mix_all(view, blocks, scores, stride, copy, out);
    mix_paths(view, scores + common, stride, copy, out);
    write_results(view, query, out);
}
