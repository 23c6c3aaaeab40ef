// Arguments of the kernel `embed`.
#pragma once

#include <cstdint>

#include "linear.h"

namespace pybeam {

// y [rows, size] = position_table[position] + embedding_scale * W[token]. W is packed, or [V,
// size]. Nothing is added where there are no positions. A skipped token takes its position from the
// second half of the table.
struct EmbedParams {
    const int32_t* token;
    const int32_t* position;
    int64_t num_rows;
    const void* weight;
    WeightType type;
    bool is_packed;
    const float* scale;  // of int8 weights
    int64_t vocab_size;
    const float* position_table;
    int64_t num_positions;
    int32_t skipped_id;  // -1: none
    float embedding_scale;
    float* y;
    int64_t size;
    int num_threads;

    int64_t place(int64_t row) const {
        return position[row] + (token[row] == skipped_id ? num_positions / 2 : 0);
    }
};

// Raises std::runtime_error if a token or a position is not in its table.
void check_embed(const EmbedParams& params);
void embed_row(const EmbedParams& params, int64_t row);
void launch_embed(const EmbedParams& params);

}  // namespace pybeam
