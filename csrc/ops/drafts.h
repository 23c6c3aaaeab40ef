// The operators on drafts.
#pragma once

#include "../params/drafts.h"
#include "beams.h"
#include "check.h"

namespace pybeam {

// Where each array of Python's `Drafts` stands in the list of arrays.
struct DraftArrays {
    enum Array { kInts, kGuess, kNumArrays };
};

inline Drafts drafts_of(TensorList arrays, const Beams& beams) {
    using A = DraftArrays;
    check_size("drafts", arrays, A::kNumArrays);
    const Tensor& guess = arrays[A::kGuess];
    check_dim("guess", guess, 2);
    Drafts drafts{};
    drafts.num_slots = beams.num_slots;
    drafts.max_guesses = guess.size(1);
    drafts.ints = state<int32_t>("draft_ints", arrays[A::kInts], ScalarType::kInt32,
                                 {drafts.num_slots, Drafts::kNumInts});
    drafts.guess =
        state<int32_t>("guess", guess, ScalarType::kInt32, {drafts.num_slots, drafts.max_guesses});
    return drafts;
}

// A guess is seen by its own row and those behind it, which masks say.
inline void check_masks(const Tree& tree) {
    PYBEAM_CHECK_VALUE(!tree.has_paths(), "guesses need a `tree` that has masks, not paths");
}

inline void draft_open(TensorList tree, TensorList beams, TensorList drafts, const Tensor& slot,
                       const Tensor& ints, const Tensor& floats, const Tensor& draft_ints,
                       int64_t start_id, int64_t eos_id, int64_t vocab_size) {
    const OpenArguments arguments(slot, ints, floats);
    const Argument<int32_t> draft_arg("draft_ints", draft_ints, ScalarType::kInt32,
                                      {arguments.num_sources, Drafts::kNumInts});
    DraftOpenParams params{};
    params.open = arguments.params(tree, beams, start_id);
    check_masks(params.open.tree);
    params.drafts = drafts_of(drafts, params.open.beams);
    params.ints = draft_arg;
    params.eos_id = static_cast<int32_t>(eos_id);
    params.vocab_size = vocab_size;
    launch_draft_open(params);
}

inline void draft_commit(TensorList tree, TensorList beams, TensorList drafts, const Tensor& slot,
                         TensorList survivors, const OptionalTensor& eos_token, int64_t eos_id,
                         int64_t vocab_size) {
    using A = SurvivorArrays;
    check_dim("slot", slot, 1);
    const int64_t num_sources = slot.size(0);
    const int64_t num_rows = checked_survivors(survivors)[A::kToken].size(0);
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {num_sources});
    const Argument<int32_t> token_arg("token", survivors[A::kToken], ScalarType::kInt32,
                                      {num_rows, 1});
    const Argument<float> log_prob_arg("log_prob", survivors[A::kLogProb], ScalarType::kFloat32,
                                       {num_rows, 1});
    const Argument<bool> has_nan_arg("has_nan", survivors[A::kHasNan], ScalarType::kBool,
                                     {num_rows});
    const Argument<int32_t> eos_token_arg("eos_token", eos_token, ScalarType::kInt32,
                                          {num_rows, 1});
    DraftCommitParams params{};
    params.tree = tree_of(tree);
    check_masks(params.tree);
    params.beams = beams_of(beams);
    check_same_slots(params.tree, params.beams);
    params.drafts = drafts_of(drafts, params.beams);
    params.slot = slot_arg;
    params.num_sources = num_sources;
    params.token = token_arg;
    params.eos_token = eos_token_arg;
    params.log_prob = log_prob_arg;
    params.has_nan = has_nan_arg;
    params.num_rows = num_rows;
    params.eos_id = static_cast<int32_t>(eos_id);
    params.vocab_size = vocab_size;
    launch_draft_commit(params);
}

}  // namespace pybeam
