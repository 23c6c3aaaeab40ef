// Arguments of the kernel `automaton_places`; `pybeam.backends.torch_places` says what it does.
#pragma once

#include <cstdint>

#include "automata.h"

namespace pybeam {

struct AutomatonPlacesParams {
    Automata automata;
    float* log_probs;
    int64_t row_stride;
    int64_t vocab_size;
    int64_t num_rows;
    const int32_t* state;  // [slots, nodes]
    int64_t num_slots, max_nodes;
    const int32_t* child;  // [slots, num_children]
    int64_t num_children;
    const int32_t *row_slot, *node, *entry, *position;  // per row
    const int32_t* offset;                              // [beams + 1], of rows
    const int32_t* prefix_length;                       // per slot
    const float* score;                                 // [slots, max_entries]
    int64_t max_entries;
    const int32_t* entries;  // [beams + 1]
    const int32_t* width;    // per beam
    int64_t num_beams;
    const int32_t *token, *parent;  // [beams, num_best]
    int64_t num_best;
    EosIds eos;
    int num_threads;
};

// Throws std::runtime_error before it would read or write out of bounds.
void launch_automaton_places(const AutomatonPlacesParams& params);

}  // namespace pybeam
