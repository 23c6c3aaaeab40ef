// Arguments of the kernel `rms_norm`.
#pragma once

#include <cstdint>

namespace pybeam {

// y = x / sqrt(mean(x^2) + epsilon) * weight, for every head of every row.
struct RmsNormParams {
    const float* x;
    int64_t x_row_stride, x_head_stride;
    const float* weight;
    float epsilon;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t num_heads;
    int64_t size;
    int num_threads;
};

void launch_rms_norm(const RmsNormParams& params);

}  // namespace pybeam
