// Arguments of the kernel `layers`: the layers of a transformer, one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "embed.h"
#include "linear.h"
#include "rotary.h"
#include "select.h"
#include "tree_attention.h"
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
    bool keeps_large;  // see `LinearParams`
    const float* scale;
    const float* bias;
    int64_t num_columns;
    int64_t depth;
};

// The norms around a sublayer f: x becomes behind(x + added(f(before(x)))). Each may be null.
struct SublayerNorms {
    NormWeights before, added, behind;
};

struct LayerWeights {
    SublayerNorms self_norms;
    LinearWeights qkv;                 // queries of all heads, keys and values of the key heads
    NormWeights query_norm, key_norm;  // over a head, or null
    LinearWeights self_out;
    SublayerNorms cross_norms;
    LinearWeights cross_query, cross_out;  // null without cross-attention
    SublayerNorms inner_norms;
    LinearWeights inner, inner_out;
    int32_t window;  // a row sees so many positions, its own counted; 0: all
    int32_t rotary;  // which table turns queries and keys; -1: none
};

// Keys and values of all layers, [layers, cells, 2, key heads, head size].
struct LayerPool {
    void* data;
    DType dtype;  // float32 or bfloat16
    int64_t num_cells;
    int64_t layer_stride;
    int64_t key_size;  // numbers of a key: key heads * head size
    bool is_there;     // a pool without cells has no data
};

class Columns;
class Selection;

struct LayersParams {
    std::vector<LayerWeights> layers;
    std::vector<RotaryTable> rotary;
    NormWeights embedding_norm, final_norm;
    LinearWeights output;  // or null
    Activation activation;
    bool is_gated;     // `inner` has gates, then what they gate; the activation is of gates
    bool is_parallel;  // inner layers read what attention reads, and both add to it
    float epsilon;
    float output_soft_cap;  // logits become cap * tanh(logit / cap); 0: they stay
    int64_t size;
    int64_t inner_size;
    int64_t num_heads, num_key_heads, head_size;
    int64_t num_rows;
    const EmbedParams* embed;  // makes the inputs, without `y`; null: they are x
    float* x;                  // [rows, size], changed; null where there is `embed`
    const int32_t* place;      // of each row, in the rotary tables
    // logits [rows, columns], or states [rows, size] without an output layer; null: those that go
    // to a pool are all that is wanted
    float* out;
    // chooses among the logits, of which `out` keeps a few rows at a time then; or null
    Selection* selection;
    const EditParams* edits;  // of those logits, before all else; or null
    Columns* columns;         // in place of those logits; or null
    // in a decoder keys and values are written to the pool; in an encoder, which has none, rows
    // attend over the rows of their own source
    LayerPool own_pool, cross_pool;
    // where the output layer of an encoder writes keys and values of all layers of a decoder
    LayerPool state_pool;
    const int32_t* cell;  // where each row's keys and values go, -1: nowhere
    // what attention reads, without queries, keys and values
    TreeAttentionParams own, cross;
    int num_threads;

    // Whether somebody reads what follows the keys and values of the last layer.
    bool is_read() const { return out != nullptr || state_pool.is_there; }
    // Numbers of the queries of a row, and of its queries, keys and values.
    int64_t attended_size() const { return num_heads * head_size; }
    int64_t qkv_size() const { return (num_heads + 2 * num_key_heads) * head_size; }
};

void launch_layers(const LayersParams& params);

// This and `launch_select`, whose logits they are: `out`, which has no meaning then.
void launch_layers(LayersParams params, const SelectParams& select);

}  // namespace pybeam
