// Arguments of the kernels that read a catalogue's tree.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

// Edge e leads to node e + 1. Edges of node n are first[n] .. first[n + 1]; nodes from `num_inner`
// on have none. Tokens ascend among the edges of a node.
struct CatalogueTree {
    const int32_t* token;
    const int32_t* first;
    int64_t num_edges;
    int64_t num_inner;
};

struct CatalogueChildParams {
    CatalogueTree tree;
    const int32_t* node;  // per row; -1 is outside
    const int32_t* given;
    int32_t* out;
    int64_t num_rows;
};

// The tokens whose probabilities sum to 1; `Normalise` in Python.
enum class Normalise { kNothing, kVocabulary, kColumns };

struct CatalogueColumnsParams {
    CatalogueTree tree;
    const uint32_t* words;  // per filter: bits of nodes that it enters, then of those where it ends
    int64_t num_filters;
    int64_t num_words;  // of each of the two
    const void* logits;
    DType dtype;
    int64_t row_stride;
    int64_t vocab_size;
    const int32_t* node;
    const int32_t* line;  // per row, its filter
    int64_t num_rows;
    int64_t eos_id;
    bool eos_first;
    Normalise normalise;
    int64_t num_columns;  // of `out`, that of EOS included
    float* out;
    int num_threads;
};

void launch_catalogue_child(const CatalogueChildParams& params);

// The most edges of a row's node, at least 1.
int64_t most_edges(const CatalogueTree& tree, const int32_t* node, int64_t num_rows);

void launch_catalogue_columns(const CatalogueColumnsParams& params);

}  // namespace pybeam
