// Arguments of the kernel `edit_logits`.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

// `Edit` in Python.
enum class EditKind : int32_t {
    kRepetition,
    kNgram,
    kTokens,
    kSequences,
    kMinLength,
    kEosPenalty,
    kTokenPenalty,
    kBiasedPrefix,
    kFirstToken,
    kLastToken,
    kLogSoftmax,
    kMarks,
    kRecord,
    kAutomaton,
    kCounts,
    kSequenceBias,
};

// Where the tokens of `kRecord` begin in its line of `ints`: behind how many tokens of the prefix
// follow that place, and the line of the record.
constexpr int64_t kRecordTokens = 2;

struct AutomatonLogitsParams;

// One edit. Its arrays have a line per slot, and those that it lacks are null.
struct Edit {
    EditKind kind;
    int32_t number, other;  // `EditRule.numbers` in Python
    const float* floats;
    const float* more_floats;
    const int32_t* ints;
    const int32_t* count;  // how many sequences a slot has
    int64_t size;          // of a line of `ints`: tokens, or sequences
    int64_t longest;       // tokens of a sequence
    float* record;         // [num_records, size - kRecordTokens], what is written down
    int64_t num_records;
    // the states of all rows, of `kAutomaton`
    const AutomatonLogitsParams* automaton;

    bool reads_history() const {
        return kind == EditKind::kRepetition || kind == EditKind::kNgram ||
               kind == EditKind::kSequences || kind == EditKind::kBiasedPrefix ||
               kind == EditKind::kMarks || kind == EditKind::kCounts ||
               kind == EditKind::kSequenceBias;
    }
};

// Edits of some rows, one after another. A token that is no column is nobody's.
struct EditParams {
    const Edit* edits;
    int64_t num_edits;
    // per row
    const int32_t* slot;
    const int32_t* position;
    const int32_t* history;  // [rows, history_size], start token first; null if no edit reads it
    int64_t history_size;
    // per slot
    const int32_t* prompt;  // [slots, prompt_size], padded with -1 on the left
    int64_t prompt_size;
    const int32_t* prefix_length;
    const int32_t* max_length;
    int64_t limit_stride;  // of the two
    EosIds eos;
};

// Edits the logits [vocab_size] of one row.
void edit_row(const EditParams& params, int64_t row, float* logits, int64_t vocab_size);

struct EditedLogits {
    float* data;  // [num_rows, vocab_size]
    int64_t num_rows;
    int64_t vocab_size;
    int num_threads;
};

void launch_edit_logits(const EditParams& params, const EditedLogits& logits);

}  // namespace pybeam
