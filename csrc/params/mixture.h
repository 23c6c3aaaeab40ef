// Arguments of the kernel `mixture`.
#pragma once

#include <cstdint>

namespace pybeam {

// out = log((1 / n) sum_i softmax(logits_i)) of the rows of `num_members` tensors.
struct MixtureParams {
    const float* const* logits;  // per member
    const int64_t* row_stride;
    float* out;  // contiguous
    int64_t num_members;
    int64_t num_rows;
    int64_t vocab_size;
    int num_threads;
};

void launch_mixture(const MixtureParams& params);

}  // namespace pybeam
