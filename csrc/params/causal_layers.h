// Arguments of the kernel `causal_layers`: the layers of a decoder-only transformer.
#pragma once

#include <cstdint>
#include <vector>

#include "embed.h"
#include "rotary.h"
#include "sublayers.h"
#include "tree_attention.h"

namespace pybeam {

// x + after(attention(norm(x))), then x + after(out(f(gates) values)) of its norm.
struct CausalLayerWeights {
    NormWeights self_norm;
    LinearWeights qkv;                 // queries of all heads, keys and values of the key heads
    NormWeights query_norm, key_norm;  // over a head, or null
    LinearWeights self_out;
    NormWeights after_self_norm;  // or null
    NormWeights inner_norm;
    LinearWeights gate_up;  // gates, then what they gate
    LinearWeights inner_out;
    NormWeights after_inner_norm;  // or null
    int32_t window;                // a row sees so many positions, its own counted; 0: all
    int64_t rotary;                // which table
};

struct CausalLayersParams {
    std::vector<CausalLayerWeights> layers;
    std::vector<RotaryTable> rotary;
    NormWeights final_norm;
    LinearWeights output;  // or null
    Activation activation;
    float epsilon;
    float output_soft_cap;  // logits become cap * tanh(logit / cap); 0: they stay
    int64_t size;
    int64_t inner_size;
    int64_t num_heads, num_key_heads, head_size;
    EmbedParams embed;  // makes the inputs, without `y`
    int64_t num_rows;
    // logits [rows, columns], or states [rows, size] without an output layer; null: keys and values
    // are all that is wanted
    float* out;
    LayerPool pool;
    const int32_t* cell;        // where each row's key and value go, -1: nowhere
    const int32_t* rotary_row;  // of each row, in the rotary tables
    TreeAttentionParams seen;   // what attention reads, without queries, keys and values
    int num_threads;
};

void launch_causal_layers(const CausalLayersParams& params);

}  // namespace pybeam
