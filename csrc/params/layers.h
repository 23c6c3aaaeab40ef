// Arguments of the kernel `layers`: the layers of a transformer, one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "embed.h"
#include "linear.h"
#include "tree_attention.h"
#include "types.h"

namespace pybeam {

// Null where there is no norm.
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

// A layer of an encoder has no cross-attention.
struct LayerWeights {
    NormWeights self_norm;
    LinearWeights qkv, self_out;
    NormWeights cross_norm;
    LinearWeights cross_query, cross_out;
    NormWeights inner_norm;
    LinearWeights inner, inner_out;
};

// Keys and values of all layers, [layers, cells, 2, heads, head size].
struct LayerPool {
    void* data;
    DType dtype;  // float32; where encoder states lie, bfloat16 too
    int64_t num_cells;
    int64_t layer_stride;
    bool is_there;  // a pool without cells has no data
};

struct LayersParams {
    std::vector<LayerWeights> layers;
    NormWeights embedding_norm, final_norm;
    LinearWeights output;
    bool is_pre_norm;  // a sublayer is x + f(norm(x)), else norm(x + f(x))
    Activation activation;
    float epsilon;
    int64_t num_rows;
    int64_t size;
    int64_t inner_size;
    const EmbedParams* embed;  // makes the inputs, without `y`; null: they are x
    float* x;                  // [rows, size], changed; null where there is `embed`
    float* out;                // [rows, columns of the output layer], or [rows, size] without one
    // in a decoder keys and values are written to the pool; in an encoder, which has none, rows
    // attend over the rows of their own source
    LayerPool own_pool, cross_pool;
    const int32_t* cell;  // where each row's key and value go, -1: nowhere
    // what attention reads, without queries, keys and values
    TreeAttentionParams own, cross;
    int num_threads;
};

void launch_layers(const LayersParams& params);

}  // namespace pybeam
