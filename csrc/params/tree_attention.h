// Arguments of the kernel `tree_attention`.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

struct TreeAttentionParams {
    const void* query;
    const void* key;
    const void* value;
    void* out;         // contiguous
    DType dtype;       // of queries and results
    DType cell_dtype;  // of keys and values: the same, or bfloat16 beside float32
    int64_t query_row_stride, query_head_stride;
    int64_t key_cell_stride, key_head_stride;
    int64_t value_cell_stride, value_head_stride;
    const int32_t* offset;
    const int32_t* slot;
    const int32_t* cell;
    const int32_t* num_cells;
    const int64_t* mask;
    const int32_t* entry;  // of the beam, per row
    // by slot and entry: places of the cells that a row alone sees, counted behind the common ones
    const int32_t* path;
    const int32_t* path_length;  // by slot
    const int32_t* num_shared;   // by slot: cells that all rows see, first in `cell`; null: none
    const int64_t* trunk;        // by source: nodes with which all paths begin; set by the tasks
    int64_t num_rows;
    int64_t num_sources;
    int64_t num_slots;
    int64_t num_pool_cells;
    int64_t num_heads;
    int64_t num_key_heads;
    int64_t head_size;
    int64_t max_cells;              // columns of `cell` and `mask`
    int64_t mask_words;             // words per cell of `mask`
    int64_t max_entries, max_path;  // lines per slot and columns of `path`
    float scale;
    float soft_cap;  // scores become cap * tanh(score / cap); 0: they stay
    // positions of rows, and of the tokens in the pool's cells; null without bias and window
    const int32_t* position;
    const int32_t* cell_position;
    // added to scores, [num_heads, bias_size], by position of the row - position of the cell +
    // bias_origin, which is clipped; or null
    const float* bias;
    int64_t bias_size;
    int32_t bias_origin;
    int32_t window;  // a row sees cells of its last positions, its own counted; 0: all
    // the i-th cell of a line is at position i, and a row sees none behind its own; without mask
    // and cell_position
    bool in_order;
    // float32 queries, keys, values and weights of long sources are rounded to bfloat16 and
    // multiplied in pairs; rows see all cells of their source
    bool has_pairs;
    int num_threads;

    // Whether scores depend on the positions of cells.
    bool reads_positions() const {
        return cell_position != nullptr || (in_order && bias != nullptr);
    }

    // Cells before those of paths; all without paths.
    int64_t num_common(int64_t slot) const {
        if (path == nullptr) return num_cells[slot];
        return num_shared == nullptr ? 0 : num_shared[slot];
    }
};

void launch_tree_attention(const TreeAttentionParams& params);

}  // namespace pybeam
