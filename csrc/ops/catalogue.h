// The operators `catalogue_walk` and `catalogue_columns`.
#pragma once

#include "../params/catalogue.h"
#include "check.h"

namespace pybeam {

inline CatalogueTree catalogue_tree_of(const Tensor& token, const Tensor& first) {
    check_dim("token", token, 1);
    check_dim("first", first, 1);
    PYBEAM_CHECK_VALUE(first.size(0) >= 2, "`first` must have at least 2 numbers, but has ",
                       first.size(0));
    return {state<const int32_t>("token", token, ScalarType::kInt32, token.sizes()),
            state<const int32_t>("first", first, ScalarType::kInt32, first.sizes()), token.size(0),
            first.size(0) - 1};
}

// The arrays of a catalogue: tokens, first edges and filters.
class CatalogueArguments {
  public:
    explicit CatalogueArguments(TensorList arrays) {
        check_size("arrays", arrays, 3);
        const Tensor& words = arrays[2];
        tree = catalogue_tree_of(arrays[0], arrays[1]);
        check_dim("words", words, 2);
        filters = state<const uint32_t>("words", words, ScalarType::kInt32, words.sizes());
        num_filters = words.size(0);
        num_words = words.size(1) / 2;
        PYBEAM_CHECK_VALUE(num_words * 32 > tree.num_edges, "`words` must have a bit for each of ",
                           tree.num_edges + 1, " nodes, but has ", num_words * 32);
    }

    CatalogueTree tree{};
    const uint32_t* filters;
    int64_t num_filters, num_words;
};

inline Normalise normalise_of(int64_t number) {
    PYBEAM_CHECK_VALUE(number >= 0 && number <= 2, "`normalise` must be 0 to 2, but is ", number);
    return static_cast<Normalise>(number);
}

inline Tensor catalogue_walk(TensorList arrays, const Tensor& parent, const Tensor& state_of,
                             const Tensor& row_slot, const Tensor& node, const Tensor& token,
                             const Tensor& num_generated) {
    const CatalogueArguments own(arrays);
    check_dim("state", state_of, 2);
    check_dim("node", node, 1);
    const IntList nodes = state_of.sizes(), rows = node.sizes();
    CatalogueWalkParams params{};
    params.tree = own.tree;
    params.parent = state<const int32_t>("parent", parent, ScalarType::kInt32, nodes);
    params.state = state<int32_t>("state", state_of, ScalarType::kInt32, nodes);
    params.num_slots = nodes[0];
    params.max_nodes = nodes[1];
    const Argument<int32_t> slot_arg("row_slot", row_slot, ScalarType::kInt32, rows);
    const Argument<int32_t> node_arg("node", node, ScalarType::kInt32, rows);
    const Argument<int32_t> token_arg("token", token, ScalarType::kInt32, rows);
    const Argument<int32_t> num_arg("num_generated", num_generated, ScalarType::kInt32, rows);
    params.row_slot = slot_arg;
    params.node = node_arg;
    params.token = token_arg;
    params.num_generated = num_arg;
    params.num_rows = rows[0];
    Tensor out = empty(rows, ScalarType::kInt32);
    params.out = data<int32_t>(out);
    launch_catalogue_walk(params);
    return out;
}

inline Tensor catalogue_columns(TensorList arrays, const Tensor& logits, const Tensor& node,
                                const Tensor& line, int64_t eos_id, bool eos_first,
                                int64_t num_columns, int64_t normalise) {
    const CatalogueArguments own(arrays);
    check_dim("logits", logits, 2);
    check_unit_stride("logits", logits);
    const int64_t num_rows = logits.size(0), vocab_size = logits.size(1);
    const Argument<int32_t> node_arg("node", node, ScalarType::kInt32, {num_rows});
    const Argument<int32_t> line_arg("line", line, ScalarType::kInt32, {num_rows});
    PYBEAM_CHECK_VALUE(eos_id >= 0 && eos_id < vocab_size, "`eos_id` must be 0 to ", vocab_size - 1,
                       ", but is ", eos_id);
    const int64_t most = most_edges(own.tree, node_arg, num_rows);
    if (num_columns == 0) num_columns = most;
    PYBEAM_CHECK_VALUE(num_columns >= most, "`num_columns` must be at least ", most, ", but is ",
                       num_columns);
    Tensor out = empty({num_rows, num_columns + 1}, ScalarType::kFloat32);
    CatalogueColumnsParams params{};
    params.tree = own.tree;
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
    launch_catalogue_columns(params);
    return out;
}

}  // namespace pybeam
