// The arrays and rules of beams, checked.
#pragma once

#include "../params/beams.h"
#include "../params/types.h"
#include "check.h"
#include "tree.h"

namespace pybeam {

// Where each array of Python's `Beams` stands in the list of arrays.
struct BeamArrays {
    enum Array {
        kInts,
        kFloats,
        kPrefix,
        kEarlyWidth,
        kScore,
        kIsAlive,
        kEndedLength,
        kEosLogProb,
        kEosToken,
        kFinishedInts,
        kFinishedFloats,
        kNumArrays,
    };
};

inline Beams beams_of(TensorList arrays) {
    using A = BeamArrays;
    check_size("beams", arrays, A::kNumArrays);
    const Tensor &prefix = arrays[A::kPrefix], &early_width = arrays[A::kEarlyWidth];
    const Tensor &score = arrays[A::kScore], &finished = arrays[A::kFinishedInts];
    check_dim("prefix", prefix, 2);
    check_dim("early_width", early_width, 2);
    check_dim("score", score, 2);
    check_dim("finished_ints", finished, 3);
    Beams beams{};
    const int64_t num_slots = beams.num_slots = score.size(0);
    beams.max_prefix = prefix.size(1);
    beams.max_early_widths = early_width.size(1);
    beams.max_entries = score.size(1);
    beams.max_finished = finished.size(1);
    const IntList of_entries = score.sizes();
    beams.ints =
        state<int32_t>("ints", arrays[A::kInts], ScalarType::kInt32, {num_slots, Beams::kNumInts});
    beams.floats = state<float>("floats", arrays[A::kFloats], ScalarType::kFloat32,
                                {num_slots, Beams::kNumFloats});
    beams.prefix =
        state<int32_t>("prefix", prefix, ScalarType::kInt32, {num_slots, beams.max_prefix});
    beams.early_width = state<int32_t>("early_width", early_width, ScalarType::kInt32,
                                       {num_slots, beams.max_early_widths});
    beams.score = state<float>("score", score, ScalarType::kFloat32, of_entries);
    beams.is_alive = state<bool>("is_alive", arrays[A::kIsAlive], ScalarType::kBool, of_entries);
    beams.ended_length =
        state<int32_t>("ended_length", arrays[A::kEndedLength], ScalarType::kInt32, of_entries);
    beams.eos_log_prob =
        state<float>("eos_log_prob", arrays[A::kEosLogProb], ScalarType::kFloat32, of_entries);
    beams.eos_token =
        state<int32_t>("eos_token", arrays[A::kEosToken], ScalarType::kInt32, of_entries);
    beams.finished_ints = state<int32_t>("finished_ints", finished, ScalarType::kInt32,
                                         {num_slots, beams.max_finished, Beams::kNumFinishedInts});
    beams.finished_floats =
        state<float>("finished_floats", arrays[A::kFinishedFloats], ScalarType::kFloat32,
                     {num_slots, beams.max_finished, Beams::kNumFinishedFloats});
    return beams;
}

// The rules of an algorithm that a step needs.
struct BeamRules {
    EosIds eos;
    Finishing finishing;
    StopRule stop;
    bool refills;
    bool normalise;
};

inline StopRule stop_of(bool keeps_best, int64_t top, int64_t certificate) {
    PYBEAM_CHECK_VALUE(top >= 0 && top <= 2, "`top` must be 0 to 2, but is ", top);
    PYBEAM_CHECK_VALUE(certificate >= 0 && certificate <= 2,
                       "`certificate` must be 0 to 2, but is ", certificate);
    return {keeps_best, static_cast<Top>(top), static_cast<Certificate>(certificate)};
}

inline void check_same_slots(const Tree& tree, const Beams& beams) {
    PYBEAM_CHECK_VALUE(tree.num_slots == beams.num_slots && tree.max_rows == beams.max_entries,
                       "`tree` and `beams` must have the same slots and rows");
}

}  // namespace pybeam
