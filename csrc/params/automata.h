// Arguments of the kernels that read automata.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

struct LinearWeights;

// A state of a pool of automata; `pybeam.automata.Automaton` says what its numbers mean.
struct AutomatonState {
    int32_t failure;
    int32_t other;
    float other_weight;
    float final;
    int32_t needed;
    int32_t most_needed;  // by a target of its edges
};

// A pool of automata, or the tree of a catalogue: its nodes are states, and edge e leads to node
// e + 1. Edges of a state are first[state] .. first[state + 1]; states from `num_inner` on have
// none. Tokens ascend among the edges of a state. Where they follow one another, the edges are a
// run; one of a target of -1 weighs -inf.
struct Automata {
    const int32_t* token;
    const int32_t* first;
    int64_t num_edges;
    int64_t num_inner;
    // of a pool, null in a tree
    const int32_t* target;        // per edge; -1: its token is forbidden
    const float* weight;          // per edge
    const AutomatonState* state;  // [num_inner]

    bool is_tree() const { return state == nullptr; }
};

// Edges of a state.
struct Edges {
    int64_t begin;
    int64_t end;
};

// A state outside has none. Throws std::runtime_error unless they lie in the arrays.
Edges edges_of(const Automata& automata, int64_t state);

// Where the rows of a step are: `state` has the state of every node of a token tree.
struct AutomatonWalkParams {
    Automata automata;
    const int32_t* parent;  // [slots, nodes], of the token trees; -1: there is none
    int32_t* state;         // like it
    int64_t num_slots, max_nodes;
    const int32_t *row_slot, *node, *token, *position;  // per row
    // per slot: its filter in a tree, else the state where it starts, and its limits
    const int32_t *line, *prefix_length, *max_length;
    int64_t limit_stride;  // of the two
    // per row: its state, -1 outside, and its filter, or the tokens that there is room for behind
    // the next one
    int32_t *out, *line_out;
    int64_t num_rows;
};

// The tokens of the columns of rows: those of the edges of a row's state, and EOS.
struct ColumnTokens {
    Automata automata;
    const int32_t* node;  // per row, its state; -1 is outside
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

struct AutomatonColumnsParams {
    Automata automata;
    // of a tree, per filter: bits of nodes that it enters, then of those where it ends
    const uint32_t* words;
    int64_t num_filters;
    int64_t num_words;  // of each of the two
    const void* logits;
    DType dtype;
    int64_t row_stride;
    int64_t vocab_size;
    const int32_t* node;
    const int32_t* line;  // per row, as a walk gives it
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

// Rows whose logits [vocab_size] a pool shapes where they stand.
struct AutomatonLogitsParams {
    Automata automata;
    float* logits;
    int64_t row_stride;
    int64_t vocab_size;
    const int32_t *node, *line;  // per row, as a walk gives them
    int64_t num_rows;
    EosIds eos;
    int num_threads;
};

// Goes on from the state of a row's parent by its token, from its start where it is the first one.
void launch_automaton_walk(const AutomatonWalkParams& params);

// The most edges of a row's state, at least 1.
int64_t most_edges(const Automata& automata, const int32_t* node, int64_t num_rows);

void launch_automaton_columns(const AutomatonColumnsParams& params);

void launch_automaton_logits(const AutomatonLogitsParams& params);

// Throws std::runtime_error before anything would be read out of bounds.
void check_states(const AutomatonLogitsParams& params);

// Does to one row [vocab_size] what `launch_automaton_logits` does to all. States have been
// checked.
void shape_row(const AutomatonLogitsParams& params, int64_t row, float* logits, int64_t vocab_size);

}  // namespace pybeam
