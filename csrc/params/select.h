// Arguments of the kernel `select`: plain pointers and numbers, no torch types.
#pragma once

#include <cstdint>

#include "automata.h"
#include "edits.h"
#include "types.h"

namespace pybeam {

// Pointers to optional arguments may be null. Strides are in elements, `num_rows` counts the rows
// of logits and `num_beams` the entries of `width`.
struct SelectParams {
    const void* logits;
    DType dtype;
    int64_t row_stride;
    int64_t vocab_size;
    const float* score;
    const int32_t* offset;
    const int32_t* width;
    const bool* is_ended;
    const int32_t* max_candidates;
    const float* margin;
    const float* local_margin;
    const float* best_finished;
    const int32_t* forced;
    const bool* ban_eos;
    EosIds eos;
    Finishing finishing;
    bool normalise;  // false: the logits are log-probabilities already
    int64_t num_rows;
    int64_t num_beams;
    int64_t capacity;
    int num_threads;
    const EditParams* edits;  // of the logits that `launch_layers` computes; or null
    // makes what is chosen among of those logits; or null
    AutomatonColumnsParams* columns;

    int32_t* token_out;
    int32_t* parent_out;
    float* score_out;
    float* log_prob_out;
    int32_t* count_out;
    int32_t* num_finished_out;
    bool* has_nan_out;
};

// Throws std::runtime_error before it would read or write out of bounds, as all launches do.
void launch_select(const SelectParams& params);

}  // namespace pybeam
