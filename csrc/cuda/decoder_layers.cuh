// Arguments of `decoder_layers`, and how a launch is divided.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../params/linear.h"
#include "params.cuh"

namespace pybeam::cuda {

// Rows of a product that a tensor core takes at once, and columns of a group.
constexpr int kLines = 8;
// Numbers of a row that four lanes read at once, eight each.
constexpr int kPack = 32;
constexpr int kHeadSize = 64;

constexpr int kMaxRows = 64;
constexpr int kMaxLayers = 48;
constexpr int kMaxGroups = 8;
constexpr int kMaxStages = 32;
// of a layer in a block: a plan has at most `kMaxGroups` groups of a product
constexpr int kMaxLayerStages = 6 * kMaxGroups;
// Packs of places stand a line of the L2 apart, half of which stays empty: blocks that wait ask for
// lines again and again, and an exchange takes 1.9 µs in place of 1.3 where a line has two packs
// (H100, 132 blocks).
constexpr int kSpread = 2;
// Numbers of `LayersParams::books`.
constexpr int kBooks = 3;
constexpr int kChoiceGroups = kThreads / 2;

// The products of a layer, in order. Addresses of 16-bit numbers, each a multiple of 16.
enum Product { kQkv, kOwnOut, kQuery, kCrossOut, kInner, kInnerOut, kNumProducts };
// The product behind the last layer.
constexpr int kLogits = kNumProducts;

struct LinearAt {
    // of the norm before the product; null: there is none
    const uint16_t *scale, *shift;
    const uint16_t *weight, *bias;
};

struct LayerAt {
    LinearAt linear[kNumProducts];
    // [cells, 2, width]: a key and a value
    uint16_t* own_pool;
    uint16_t* source_pool;
};

// Nodes of the sources that have rows, and where the keys and values of rows go.
struct SeenCells {
    const int32_t *offset, *slot;  // [sources + 1], [sources]
    const int32_t *cell, *length;  // [slots, max_cells], [slots]
    const int64_t* mask;           // [slots, max_cells, mask_words]
    const int32_t *entry, *new_cell;
    const int32_t *source_cell, *source_length;
    int num_sources, max_cells, mask_words, max_source_cells, num_pool_cells;
};

// How a launch is divided.
struct LayersPlan {
    int num_blocks;
    int packs;         // of a warp in a chunk of a row
    int state_groups;  // of the states in a block
    int num_stages;
    int num_bytes;
};

// Tokens of rows and their positions, and the tables of both. A line that there is not is 0.
struct EmbeddingAt {
    const int32_t *token, *place;       // [rows]
    const uint16_t *table, *positions;  // [tokens, width], [positions, width]
    int num_tokens, num_positions, skipped_token;
    float scale;
};

// Arguments of `select`, but for scratch memory, and what it wants of the logits.
struct ChoiceAt {
    SelectParams select;
    float* peaks;   // [entries, slices, kChoiceGroups]
    Total* totals;  // [entries, blocks]
    int num_slices;
};

struct LayersParams {
    bool is_float16;
    bool has_choice;
    const LayerAt* layers;
    const uint16_t* states;  // [rows, width]; null: embeddings
    // Behind the last layer: states [rows, width], or logits [rows, columns] if there are columns.
    uint16_t* out;
    int64_t out_stride;
    LinearAt logits;
    int num_logits;
    uint16_t* places;    // [2, layers, places of a layer]
    uint32_t* books;     // blocks that have left, launches so far, blocks that have left logits
    int64_t num_places;  // of a layer
    int num_layers, place_rows, width, inner_width, num_heads;
    Activation activation;
    bool is_pre_norm;
    float epsilon, scale;
    SeenCells seen;
    LayersPlan plan;
    EmbeddingAt embedding;
    ChoiceAt choice;
};

// Slices of the peaks of a row, each of `kChoiceGroups`: a block has one in each round.
inline int choice_slices(int num_logits, int num_blocks) {
    const int num_groups = ((num_logits + kLines - 1) / kLines + num_blocks - 1) / num_blocks;
    const int num_rounds = (num_groups + kMaxGroups - 1) / kMaxGroups;
    return (num_rounds * num_blocks + kChoiceGroups - 1) / kChoiceGroups;
}

// Numbers of a row in a chunk, where a warp has so many packs of it.
__host__ __device__ constexpr int chunk_of(int packs) { return kThreads / 32 * kPack * packs; }
// The packs of rows so wide, whose states are one chunk.
__host__ __device__ constexpr int packs_of(int width) {
    return width <= chunk_of(1) ? 1 : width <= chunk_of(2) ? 2 : 4;
}

// Blocks that share a product of such a depth: each has a chunk.
__host__ __device__ constexpr int chunks_of(int width, int depth) {
    const int chunk = chunk_of(packs_of(width));
    return (depth + chunk - 1) / chunk;
}

// Numbers of the places of a layer's products for each row, attentions included.
__host__ __device__ constexpr int product_places(int width, int inner_width) {
    return kSpread * (9 * width + inner_width);
}

// All of them: behind those there are sums of chunks in float32 if blocks share the last product.
constexpr int places_of_row(int width, int inner_width) {
    const int chunks = chunks_of(width, inner_width);
    return product_places(width, inner_width) + (chunks > 1 ? kSpread * 2 * chunks * width : 0);
}

// Returns a plan of no blocks if these layers do not fit.
LayersPlan plan_layers(const LayersParams& params, int num_multiprocessors, int shared_bytes);
cudaError_t launch_layers(const LayersParams& params, cudaStream_t stream);

}  // namespace pybeam::cuda
