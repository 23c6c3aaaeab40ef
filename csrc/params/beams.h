// Arguments of the kernels on beams.
#pragma once

#include <cstdint>

#include "tree.h"
#include "types.h"

namespace pybeam {

// Why a source stops; `STOP_REASONS` in Python.
enum class StopReason : int32_t {
    kRunning,
    kWidth,
    kNBest,
    kTopFinished,
    kOptimal,
    kHeuristic,
    kEmptyBeam,
    kMaxLength,
    kNaN
};

// When a search is certified; `Certificate` in Python.
enum class Certificate : int32_t { kNone, kBound, kCurrent };

// Whether a best candidate that ends stops a search; `Top` in Python.
enum class Top : int32_t { kIgnored, kNow, kEver };

// `Stop` in Python, without the rule that counts finished hypotheses.
struct StopRule {
    bool keeps_best;
    Top top;
    Certificate certificate;
};

// The tensors of `Beams` in Python, and the sizes they have. The enums name its columns, in order.
struct Beams {
    enum Int {
        kReason,
        kNumRows,
        kDepth,
        kNumFinished,
        kSteps,
        kExpansions,
        kWaited,
        kNumEntries,
        kWidth,
        kNumEarlyWidths,
        kStopAt,
        kMaxCandidates,
        kMinLength,
        kMaxLength,
        kPrefixLength,
        kCertified,
        kNumFound,
        kTopHasEnded,
        kScoredFrom,
        kTargetLength,
        kEndedOnly,
        kNumInts,
    };
    enum Float {
        kMargin,
        kLocalMargin,
        kBestFinished,
        kAlpha,
        kOffset,
        kScale,
        kReward,
        kCap,
        kCutLengthOffset,
        kNumFloats
    };
    enum FinishedInt { kNode, kLength, kEos, kNumFinishedInts };
    enum FinishedFloat { kScore, kLogProb, kFinal, kNumFinishedFloats };
    int32_t* ints;
    float* floats;
    int32_t* prefix;
    int32_t* early_width;
    float* score;
    bool* is_alive;
    int32_t* ended_length;
    float* eos_log_prob;
    int32_t* eos_token;
    int32_t* finished_ints;
    float* finished_floats;
    int64_t num_slots;
    int64_t max_prefix;
    int64_t max_early_widths;
    int64_t max_entries;
    int64_t max_finished;
};

struct BeamOpenParams {
    Beams beams;
    Tree tree;
    const int32_t* slot;
    const int32_t* ints;  // a line per source
    const float* floats;
    int64_t num_sources;
    int32_t start_id;
};

struct BeamReadParams {
    Beams beams;
    const int32_t* token;
    const int32_t* row_node;
    const int32_t* row_cell;
    int64_t max_nodes;
    const int32_t* slot;
    int64_t num_sources;
    bool refills;      // whether a finished hypothesis leaves its place to others
    int64_t num_rows;  // room in the arrays of rows
    int64_t num_entries;

    int32_t* row_offset_out;  // [A + 1]
    int32_t* token_out;       // per row
    int32_t* position_out;
    int32_t* row_slot_out;
    int32_t* entry_out;
    int32_t* node_out;
    int32_t* cell_out;
    float* score_out;           // per entry
    int32_t* entry_offset_out;  // [A + 1]
    bool* is_ended_out;         // per entry
    int32_t* width_out;         // per source
    int32_t* max_candidates_out;
    float* margin_out;
    float* local_margin_out;
    float* best_finished_out;
    int32_t* forced_out;
    bool* ban_eos_out;
};

struct BeamCommitParams {
    Beams beams;
    TreeAppendParams append;  // holds the same survivors
    const float* survivor_score;
    const int32_t* eos_token;  // survivors' tokens before all EOS became one, or null
    const bool* has_nan;
    Finishing finishing;
    StopRule stop;

    int32_t* source_out;  // [A, entries], -1 where no row goes on
    int32_t* target_out;
};

struct BeamCloseParams {
    Beams beams;
    TreeReleaseParams release;
};

void launch_beam_open(const BeamOpenParams& params);
void launch_beam_read(const BeamReadParams& params);
void launch_beam_commit(const BeamCommitParams& params);
void launch_beam_close(const BeamCloseParams& params);

}  // namespace pybeam
