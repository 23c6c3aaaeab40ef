// Arguments of the kernels that read a catalogue's tree.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

struct LinearWeights;

// Edge e leads to node e + 1. Edges of node n are first[n] .. first[n + 1]; nodes from `num_inner`
// on have none. Tokens ascend among the edges of a node.
struct CatalogueTree {
    const int32_t* token;
    const int32_t* first;
    int64_t num_edges;
    int64_t num_inner;
};

// Edges of a node.
struct Edges {
    int64_t begin;
    int64_t end;
};

// A node outside has none. Throws std::runtime_error unless they lie in the tree.
Edges edges_of(const CatalogueTree& tree, int64_t node);

// Where the rows of a step are in the tree: `state` has the node of every node of a token tree.
struct CatalogueWalkParams {
    CatalogueTree tree;
    const int32_t* parent;  // [slots, nodes], of the token trees; -1: there is none
    int32_t* state;         // like it
    int64_t num_slots, max_nodes;
    const int32_t *row_slot, *node, *token, *num_generated;  // per row
    int32_t* out;                                            // per row; -1 is outside
    int64_t num_rows;
};

// The tokens of the columns of rows: those of the edges of a row's node, and EOS.
struct ColumnTokens {
    CatalogueTree tree;
    const int32_t* node;  // per row; -1 is outside
    int64_t num_rows;
    int64_t num_columns;  // that of EOS included
    int32_t eos_id;
    bool eos_first;

    int32_t eos_column() const { return eos_first ? 0 : static_cast<int32_t>(num_columns - 1); }
    // one that is not that of EOS
    int32_t other_column() const { return eos_first ? static_cast<int32_t>(num_columns - 1) : 0; }
    // Throws std::runtime_error if it is the column of no token.
    int32_t token(int64_t row, int32_t column) const;
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
    // per row, a layer that computes nothing but its columns, that of EOS first, and whose results
    // stand in place of logits; null: there is none
    const LinearWeights* const* layer;
    int64_t num_rows;
    int64_t eos_id;
    bool eos_first;
    Normalise normalise;
    int64_t num_columns;  // of `out`, that of EOS included
    float* out;
    int num_threads;
};

// Goes on from the node of a row's parent by its token, from the root where it is the first one.
void launch_catalogue_walk(const CatalogueWalkParams& params);

// The most edges of a row's node, at least 1.
int64_t most_edges(const CatalogueTree& tree, const int32_t* node, int64_t num_rows);

void launch_catalogue_columns(const CatalogueColumnsParams& params);

}  // namespace pybeam
