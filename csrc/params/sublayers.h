// The parts of the layers of all stacks.
#pragma once

#include <cstdint>

#include "linear.h"
#include "types.h"

namespace pybeam {

// Null where there is no norm. Root-mean-square norms have no bias.
struct NormWeights {
    const float* weight;
    const float* bias;
};

// Null where there is no such layer.
struct LinearWeights {
    const void* weight;
    WeightType type;
    const float* scale;
    const float* bias;
    int64_t num_columns;
    int64_t depth;
};

// Keys and values of all layers, [layers, cells, 2, heads, head size].
struct LayerPool {
    void* data;
    DType dtype;  // float32; where encoder states lie, bfloat16 too
    int64_t num_cells;
    int64_t layer_stride;
    int64_t key_size;  // numbers of a key: heads * head size
    bool is_there;     // a pool without cells has no data
};

}  // namespace pybeam
