// The operators `tree_append`, `tree_release` and `backtrace`.
#pragma once

#include <array>
#include <tuple>

#include "../params/tree.h"
#include "check.h"

namespace pybeam {

// Where each array of Python's `TreeArrays` stands in the list of arrays.
struct TreeArrays {
    enum Array {
        kToken,
        kParent,
        kLogProb,
        kNumNodes,
        kRowNode,
        kRowCell,
        kLiveCell,
        kLiveMask,
        kNumLive,
        kFreeCell,
        kNumFree,
        kPage,
        kNumPages,
        kFreePage,
        kNumFreePages,
        kNumArrays,
    };
};

inline Tree tree_of(TensorList arrays) {
    using A = TreeArrays;
    check_size("tree", arrays, A::kNumArrays);
    check_dim("token", arrays[A::kToken], 2);
    check_dim("row_node", arrays[A::kRowNode], 2);
    check_dim("live_mask", arrays[A::kLiveMask], 3);
    check_dim("free_cell", arrays[A::kFreeCell], 2);
    const Tensor &page = arrays[A::kPage], &free_page = arrays[A::kFreePage];
    check_dim("page", page, 2);
    check_dim("free_page", free_page, 1);
    Tree tree{};
    tree.num_slots = page.size(0);
    tree.max_pages = page.size(1);
    tree.max_free_pages = free_page.size(0);
    tree.max_nodes = arrays[A::kToken].size(1);
    tree.max_rows = arrays[A::kRowNode].size(1);
    tree.max_live = arrays[A::kLiveMask].size(1);
    tree.mask_words = arrays[A::kLiveMask].size(2);
    tree.max_free = arrays[A::kFreeCell].size(1);
    PYBEAM_CHECK_VALUE(tree.mask_words == 1 || tree.mask_words == 2,
                       "`live_mask` must have 1 or 2 words, but has ", tree.mask_words);
    const int64_t s = tree.num_slots;
    const std::array of_nodes{s, tree.max_nodes}, of_rows{s, tree.max_rows};
    tree.token = state<int32_t>("token", arrays[A::kToken], ScalarType::kInt32, of_nodes);
    tree.parent = state<int32_t>("parent", arrays[A::kParent], ScalarType::kInt32, of_nodes);
    tree.log_prob = state<float>("log_prob", arrays[A::kLogProb], ScalarType::kFloat32, of_nodes);
    tree.row_node = state<int32_t>("row_node", arrays[A::kRowNode], ScalarType::kInt32, of_rows);
    tree.row_cell = state<int32_t>("row_cell", arrays[A::kRowCell], ScalarType::kInt32, of_rows);
    tree.live_cell =
        state<int32_t>("live_cell", arrays[A::kLiveCell], ScalarType::kInt32, {s, tree.max_live});
    tree.live_mask = state<int64_t>("live_mask", arrays[A::kLiveMask], ScalarType::kInt64,
                                    {s, tree.max_live, tree.mask_words});
    tree.free_cell =
        state<int32_t>("free_cell", arrays[A::kFreeCell], ScalarType::kInt32, {s, tree.max_free});
    tree.num_nodes = state<int32_t>("num_nodes", arrays[A::kNumNodes], ScalarType::kInt32, {s});
    tree.num_live = state<int32_t>("num_live", arrays[A::kNumLive], ScalarType::kInt32, {s});
    tree.num_free = state<int32_t>("num_free", arrays[A::kNumFree], ScalarType::kInt32, {s});
    tree.page = state<int32_t>("page", page, ScalarType::kInt32, page.sizes());
    tree.num_pages = state<int32_t>("num_pages", arrays[A::kNumPages], ScalarType::kInt32, {s});
    tree.free_page = state<int32_t>("free_page", free_page, ScalarType::kInt32, free_page.sizes());
    tree.num_free_pages =
        state<int32_t>("num_free_pages", arrays[A::kNumFreePages], ScalarType::kInt32, {1});
    return tree;
}

// The places of the arrays of `Survivors` in Python.
struct SurvivorArrays {
    enum Array {
        kToken,
        kParent,
        kScore,
        kLogProb,
        kCount,
        kNumFinished,
        kHasNan,
        kNumArrays,
    };
};

inline TensorList checked_survivors(TensorList arrays) {
    check_size("survivors", arrays, SurvivorArrays::kNumArrays);
    check_dim("parent", arrays[SurvivorArrays::kParent], 2);
    return arrays;
}

// The arrays that the tree takes of survivors [A, C] of slots [A], checked.
struct SurvivorArguments {
    using A = SurvivorArrays;
    Argument<int32_t> slot, first, count, parent, token;
    Argument<float> log_prob;
    int64_t num_sources, capacity;

    SurvivorArguments(const Tensor& slot, TensorList arrays)
        : slot("slot", slot, ScalarType::kInt32, {slot.numel()}),
          first("num_finished", checked_survivors(arrays)[A::kNumFinished], ScalarType::kInt32,
                {slot.numel()}),
          count("count", arrays[A::kCount], ScalarType::kInt32, {slot.numel()}),
          parent("parent", arrays[A::kParent], ScalarType::kInt32,
                 {slot.numel(), arrays[A::kParent].size(-1)}),
          token("token", arrays[A::kToken], ScalarType::kInt32, arrays[A::kParent].sizes()),
          log_prob("log_prob", arrays[A::kLogProb], ScalarType::kFloat32,
                   arrays[A::kParent].sizes()),
          num_sources(slot.numel()),
          capacity(arrays[A::kParent].size(-1)) {}

    TreeAppendParams params(const Tree& tree, int64_t eos_id) const {
        TreeAppendParams params{};
        params.tree = tree;
        params.slot = slot;
        params.first = first;
        params.count = count;
        params.survivor_parent = parent;
        params.survivor_token = token;
        params.survivor_log_prob = log_prob;
        params.num_sources = num_sources;
        params.capacity = capacity;
        params.eos_id = static_cast<int32_t>(eos_id);
        params.num_threads = num_threads();
        return params;
    }
};

inline void tree_append(TensorList tree, const Tensor& slot, TensorList survivors, int64_t eos_id) {
    launch_tree_append(SurvivorArguments(slot, survivors).params(tree_of(tree), eos_id));
}

inline void tree_release(TensorList tree, const Tensor& slot) {
    check_dim("slot", slot, 1);
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {slot.size(0)});
    TreeReleaseParams params{};
    params.tree = tree_of(tree);
    params.slot = slot_arg;
    params.num_sources = slot.size(0);
    launch_tree_release(params);
}

inline std::tuple<Tensor, Tensor> backtrace(const Tensor& token, const Tensor& parent,
                                            const Tensor& slot, const Tensor& node,
                                            int64_t capacity) {
    check_dim("token", token, 2);
    check_dim("slot", slot, 1);
    PYBEAM_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
    const int64_t num_hypotheses = slot.size(0);
    const Argument<int32_t> token_arg("token", token, ScalarType::kInt32, token.sizes());
    const Argument<int32_t> parent_arg("parent", parent, ScalarType::kInt32, token.sizes());
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {num_hypotheses});
    const Argument<int32_t> node_arg("node", node, ScalarType::kInt32, {num_hypotheses});
    Tensor tokens = empty({num_hypotheses, capacity}, token.scalar_type(), token.device());
    Tensor length = empty({num_hypotheses}, token.scalar_type(), token.device());
    BacktraceParams params{};
    params.token = token_arg;
    params.parent = parent_arg;
    params.slot = slot_arg;
    params.node = node_arg;
    params.num_slots = token.size(0);
    params.max_nodes = token.size(1);
    params.num_hypotheses = num_hypotheses;
    params.capacity = capacity;
    params.tokens_out = data<int32_t>(tokens);
    params.length_out = data<int32_t>(length);
    launch_backtrace(params);
    return {tokens, length};
}

}  // namespace pybeam
