// The arrays of drafts, checked.
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

}  // namespace pybeam
