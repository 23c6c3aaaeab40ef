// The scores of one query between the products: distances, cells that are hidden, and exp. Included
// inside a namespace, after exp.

inline int64_t padded(int64_t size) { return (size + kWidth - 1) / kWidth * kWidth; }

// Hides the cells that entry `entry` of the beam does not see.
inline void hide_cells(const TreeAttentionParams& params, int64_t slot, int32_t entry,
                       int64_t num_cells, float* scores) {
    const int64_t words = params.mask_words;
    const int64_t* mask = params.mask + slot * params.max_cells * words + entry / 64;
    const int shift = entry % 64;
    if (words == 1) {  // the stride is one, so the compiler can vectorise the loop
        for (int64_t u = 0; u < num_cells; ++u) {
            scores[u] = (mask[u] >> shift & 1) != 0 ? scores[u] : -INFINITY;
        }
    } else {
        for (int64_t u = 0; u < num_cells; ++u) {
            scores[u] = (mask[u * words] >> shift & 1) != 0 ? scores[u] : -INFINITY;
        }
    }
}

// Adds what belongs to the distance of each cell.
inline void add_biases(const TreeAttentionParams& params, int64_t head, int32_t position,
                       const int32_t* cell_position, int64_t num_cells, float* scores) {
    const float* bias = params.bias + head * params.bias_size;
    const int32_t last = static_cast<int32_t>(params.bias_size) - 1;
    const int32_t from = position + params.bias_origin;
    for (int64_t u = 0; u < num_cells; ++u) {
        const int32_t column = from - cell_position[u];
        scores[u] += bias[column < 0 ? 0 : column > last ? last : column];
    }
}

// Hides the cells that are ahead of a row, or too far behind it.
inline void hide_far_cells(int32_t window, int32_t position, const int32_t* cell_position,
                           int64_t num_cells, float* scores) {
    for (int64_t u = 0; u < num_cells; ++u) {
        const int32_t back = position - cell_position[u];
        scores[u] = back >= 0 && back < window ? scores[u] : -INFINITY;
    }
}

// Hides the cells behind place `last`, and those before its window.
inline void hide_others(int32_t window, int64_t last, int64_t num_cells, float* scores) {
    const int64_t first = window == 0 ? 0 : last - window + 1;
    for (int64_t u = 0; u < first; ++u) scores[u] = -INFINITY;
    for (int64_t u = last + 1; u < num_cells; ++u) scores[u] = -INFINITY;
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
