// Arguments of the kernel `layers`: the layers of a transformer, one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "embed.h"
#include "sublayers.h"
#include "tree_attention.h"

namespace pybeam {

// A layer of an encoder has no cross-attention.
struct LayerWeights {
    NormWeights self_norm;
    LinearWeights qkv, self_out;
    NormWeights cross_norm;
    LinearWeights cross_query, cross_out;
    NormWeights inner_norm;
    LinearWeights inner, inner_out;
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
    int64_t attended_size;     // heads * head size
    bool is_gated;             // `inner` has gates, then what they gate; the activation is of gates
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
