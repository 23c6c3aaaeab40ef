// The operators `automaton_walk`, `automaton_columns` and `automaton_logits`.
#pragma once

#include "../params/automata.h"
#include "check.h"

namespace pybeam {

// The edges of a pool or of a tree, which columns have.
inline Automata edges_of(const Tensor& token, const Tensor& first) {
    check_dim("token", token, 1);
    check_dim("first", first, 1);
    PYBEAM_CHECK_VALUE(first.size(0) >= 2, "`first` must have at least 2 numbers, but has ",
                       first.size(0));
    Automata automata{};
    automata.token = state<const int32_t>("token", token, ScalarType::kInt32, token.sizes());
    automata.first = state<const int32_t>("first", first, ScalarType::kInt32, first.sizes());
    automata.num_edges = token.size(0);
    automata.num_inner = first.size(0) - 1;
    return automata;
}

// The arrays of a catalogue, tokens, first edges and filters, or those of a pool; see
// `CatalogueArrays` and `PoolArrays` in Python.
class AutomataArguments {
  public:
    explicit AutomataArguments(TensorList arrays) {
        PYBEAM_CHECK_VALUE(arrays.size() == 3 || arrays.size() == 4,
                           "`arrays` must have 3 or 4 arrays, but has ", arrays.size());
        automata = pybeam::edges_of(arrays[0], arrays[1]);
        arrays.size() == 3 ? take_filters(arrays[2]) : take_states(arrays[2], arrays[3]);
    }

    Automata automata{};
    // of a tree
    const uint32_t* filters = nullptr;
    int64_t num_filters = 0, num_words = 0;

  private:
    void take_filters(const Tensor& words) {
        check_dim("words", words, 2);
        filters = state<const uint32_t>("words", words, ScalarType::kInt32, words.sizes());
        num_filters = words.size(0);
        num_words = words.size(1) / 2;
        PYBEAM_CHECK_VALUE(num_words * 32 > automata.num_edges,
                           "`words` must have a bit for each of ", automata.num_edges + 1,
                           " nodes, but has ", num_words * 32);
    }

    void take_states(const Tensor& edge, const Tensor& states) {
        constexpr int64_t kNumbers = sizeof(AutomatonState) / sizeof(int32_t);
        const int64_t num_edges = automata.num_edges, num_states = automata.num_inner + 1;
        const auto* edges = state<const int32_t>("edge", edge, ScalarType::kInt32, {2, num_edges});
        automata.target = edges;
        automata.weight = reinterpret_cast<const float*>(edges + num_edges);
        automata.state = reinterpret_cast<const AutomatonState*>(
            state<const int32_t>("state", states, ScalarType::kInt32, {num_states, kNumbers}));
    }
};

inline Normalise normalise_of(int64_t number) {
    PYBEAM_CHECK_VALUE(number >= 0 && number <= 2, "`normalise` must be 0 to 2, but is ", number);
    return static_cast<Normalise>(number);
}

// Returns the states of rows, then their lines: [2, R].
inline Tensor automaton_walk(TensorList arrays, const Tensor& parent, const Tensor& state_of,
                             const Tensor& row_slot, const Tensor& node, const Tensor& token,
                             const Tensor& position, const Tensor& line,
                             const Tensor& prefix_length, const Tensor& max_length) {
    const AutomataArguments own(arrays);
    check_dim("state", state_of, 2);
    check_dim("node", node, 1);
    const IntList nodes = state_of.sizes(), rows = node.sizes();
    AutomatonWalkParams params{};
    params.automata = own.automata;
    params.parent = state<const int32_t>("parent", parent, ScalarType::kInt32, nodes);
    params.state = state<int32_t>("state", state_of, ScalarType::kInt32, nodes);
    params.num_slots = nodes[0];
    params.max_nodes = nodes[1];
    const Argument<int32_t> slot_arg("row_slot", row_slot, ScalarType::kInt32, rows);
    const Argument<int32_t> node_arg("node", node, ScalarType::kInt32, rows);
    const Argument<int32_t> token_arg("token", token, ScalarType::kInt32, rows);
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, rows);
    const int64_t slots = nodes[0];
    const Argument<int32_t> line_arg("line", line, ScalarType::kInt32, {slots});
    const Argument<int32_t> prefix_arg("prefix_length", prefix_length, ScalarType::kInt32, {slots});
    const Argument<int32_t> limit_arg("max_length", max_length, ScalarType::kInt32, {slots});
    params.row_slot = slot_arg;
    params.node = node_arg;
    params.token = token_arg;
    params.position = position_arg;
    params.line = line_arg;
    params.prefix_length = prefix_arg;
    params.max_length = limit_arg;
    params.limit_stride = 1;
    params.num_rows = rows[0];
    Tensor out = empty({2, rows[0]}, ScalarType::kInt32);
    params.out = data<int32_t>(out);
    params.line_out = params.out + rows[0];
    launch_automaton_walk(params);
    return out;
}

inline Tensor automaton_columns(TensorList arrays, const Tensor& logits, const Tensor& node,
                                const Tensor& line, int64_t eos_id, bool eos_first,
                                int64_t num_columns, int64_t normalise) {
    const AutomataArguments own(arrays);
    check_dim("logits", logits, 2);
    check_unit_stride("logits", logits);
    const int64_t num_rows = logits.size(0), vocab_size = logits.size(1);
    const Argument<int32_t> node_arg("node", node, ScalarType::kInt32, {num_rows});
    const Argument<int32_t> line_arg("line", line, ScalarType::kInt32, {num_rows});
    PYBEAM_CHECK_VALUE(eos_id >= 0 && eos_id < vocab_size, "`eos_id` must be 0 to ", vocab_size - 1,
                       ", but is ", eos_id);
    const int64_t most = most_edges(own.automata, node_arg, num_rows);
    if (num_columns == 0) num_columns = most;
    PYBEAM_CHECK_VALUE(num_columns >= most, "`num_columns` must be at least ", most, ", but is ",
                       num_columns);
    Tensor out = empty({num_rows, num_columns + 1}, ScalarType::kFloat32);
    AutomatonColumnsParams params{};
    params.automata = own.automata;
    params.words = own.filters;
    params.num_filters = own.num_filters;
    params.num_words = own.num_words;
    params.logits = logits.data_ptr();
    params.dtype = float_type("logits", logits);
    params.row_stride = logits.stride(0);
    params.vocab_size = vocab_size;
    params.node = node_arg;
    params.line = line_arg;
    params.num_rows = num_rows;
    params.eos_id = eos_id;
    params.eos_first = eos_first;
    params.normalise = normalise_of(normalise);
    params.num_columns = num_columns + 1;
    params.out = data<float>(out);
    params.num_threads = num_threads();
    launch_automaton_columns(params);
    return out;
}

// Walks, and shapes the rows.
inline void automaton_logits(const Tensor& logits, TensorList arrays, const Tensor& parent,
                             const Tensor& state_of, const Tensor& row_slot, const Tensor& node,
                             const Tensor& token, const Tensor& position, const Tensor& line,
                             const Tensor& prefix_length, const Tensor& max_length,
                             IntList eos_ids) {
    const AutomataArguments own(arrays);
    PYBEAM_CHECK_VALUE(!own.automata.is_tree(), "`arrays` must be those of a pool");
    check_dim("logits", logits, 2);
    check_unit_stride("logits", logits);
    PYBEAM_CHECK_VALUE(float_type("logits", logits) == DType::kFloat32,
                       "`logits` must be float32, but is ", logits.scalar_type());
    const int64_t num_rows = logits.size(0);
    check_dim("node", node, 1);
    PYBEAM_CHECK_VALUE(node.size(0) == num_rows, "`node` must have a number for each of ", num_rows,
                       " rows, but has ", node.size(0));
    const Tensor walked = automaton_walk(arrays, parent, state_of, row_slot, node, token, position,
                                         line, prefix_length, max_length);
    AutomatonLogitsParams params{};
    params.automata = own.automata;
    params.logits = data<float>(logits);
    params.row_stride = logits.stride(0);
    params.vocab_size = logits.size(1);
    params.node = data<int32_t>(walked);
    params.line = params.node + num_rows;
    params.num_rows = num_rows;
    params.eos = eos_of(eos_ids);
    params.num_threads = num_threads();
    launch_automaton_logits(params);
}

}  // namespace pybeam
