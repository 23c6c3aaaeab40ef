// Arguments of the kernel `layer_norm`.
#pragma once

#include <cstdint>

namespace pybeam {

struct LayerNormParams {
    const float* x;
    int64_t x_stride;
    const float* weight;
    const float* bias;
    float epsilon;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

void launch_layer_norm(const LayerNormParams& params);

}  // namespace pybeam
