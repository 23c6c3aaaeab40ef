// Arguments of the kernels on drafts.
#pragma once

#include <cstdint>

#include "beams.h"

namespace pybeam {

// The tensors of `Drafts` in Python, and the sizes they have. The enum names its columns, in order.
struct Drafts {
    enum Int {
        kMaxRows,
        kBlock,
        kHorizon,
        kWindow,
        kCredit,
        kPrice,
        kFill,
        kNgram,
        kNumGuesses,
        kFeedsAll,
        kNumInts,
    };
    // Values of kFill that are no tokens: the token before, or no guess, and no row.
    enum Fill { kNone = -2, kLast };
    int32_t* ints;
    int32_t* guess;
    int64_t num_slots;
    int64_t max_guesses;
};

struct DraftOpenParams {
    BeamOpenParams open;
    Drafts drafts;  // with the lines of these sources
    int32_t eos_id;
    int64_t vocab_size;
};

struct DraftCommitParams {
    Tree tree;
    Beams beams;
    Drafts drafts;
    const int32_t* slot;
    int64_t num_sources;
    const int32_t* token;      // per row, what was selected for it, or -1
    const int32_t* eos_token;  // the same before all EOS became one, or null
    const float* log_prob;
    const bool* has_nan;
    int64_t num_rows;
    int32_t eos_id;
    int64_t vocab_size;
};

void launch_draft_open(const DraftOpenParams& params);
void launch_draft_commit(const DraftCommitParams& params);

}  // namespace pybeam
