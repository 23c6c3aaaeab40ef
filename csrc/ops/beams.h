// The operators on beams.
#pragma once

#include <tuple>
#include <vector>

#include "../params/beams.h"
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

// Checks the columns of slots [A] that are opened: a line of numbers per slot.
struct OpenArguments {
    Argument<int32_t> slot, ints;
    Argument<float> floats;
    int64_t num_sources;

    OpenArguments(const Tensor& slot, const Tensor& ints, const Tensor& floats)
        : slot("slot", slot, ScalarType::kInt32, {slot.numel()}),
          ints("ints", ints, ScalarType::kInt32, {slot.numel(), Beams::kNumInts}),
          floats("floats", floats, ScalarType::kFloat32, {slot.numel(), Beams::kNumFloats}),
          num_sources(slot.numel()) {}

    BeamOpenParams params(TensorList tree, TensorList beams, int64_t start_id) const {
        BeamOpenParams params{};
        params.beams = beams_of(beams);
        params.tree = tree_of(tree);
        check_same_slots(params.tree, params.beams);
        params.slot = slot;
        params.ints = ints;
        params.floats = floats;
        params.num_sources = num_sources;
        params.start_id = static_cast<int32_t>(start_id);
        return params;
    }
};

inline void beam_open(TensorList tree, TensorList beams, const Tensor& slot, const Tensor& ints,
                      const Tensor& floats, int64_t start_id) {
    const OpenArguments arguments(slot, ints, floats);
    launch_beam_open(arguments.params(tree, beams, start_id));
}

inline std::vector<Tensor> beam_read(TensorList tree_arrays, TensorList arrays, const Tensor& slot,
                                     bool refills, int64_t num_rows, int64_t num_entries) {
    check_dim("slot", slot, 1);
    BeamReadParams params{};
    params.beams = beams_of(arrays);
    const Tree tree = tree_of(tree_arrays);
    check_same_slots(tree, params.beams);
    const int64_t num_sources = slot.size(0);

    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {num_sources});
    params.token = tree.token;
    params.row_node = tree.row_node;
    params.row_cell = tree.row_cell;
    params.max_nodes = tree.max_nodes;
    params.slot = slot_arg;
    params.num_sources = num_sources;
    params.refills = refills;
    PYBEAM_CHECK_VALUE(num_rows >= 0 && num_entries >= 0,
                       "`num_rows` and `num_entries` must not be negative");
    params.num_rows = num_rows;
    params.num_entries = num_entries;

    std::vector<Tensor> results;
    const auto result = [&](ScalarType dtype, int64_t size) {
        return results.emplace_back(empty({size}, dtype)).data_ptr();
    };
    const auto ints = [&](int64_t size) {
        return static_cast<int32_t*>(result(ScalarType::kInt32, size));
    };
    const auto floats = [&](int64_t size) {
        return static_cast<float*>(result(ScalarType::kFloat32, size));
    };
    const auto bools = [&](int64_t size) {
        return static_cast<bool*>(result(ScalarType::kBool, size));
    };
    params.row_offset_out = ints(num_sources + 1);
    params.token_out = ints(num_rows);
    params.position_out = ints(num_rows);
    params.row_slot_out = ints(num_rows);
    params.entry_out = ints(num_rows);
    params.node_out = ints(num_rows);
    params.cell_out = ints(num_rows);
    params.score_out = floats(num_entries);
    params.entry_offset_out = ints(num_sources + 1);
    params.is_ended_out = bools(num_entries);
    params.width_out = ints(num_sources);
    params.max_candidates_out = ints(num_sources);
    params.margin_out = floats(num_sources);
    params.local_margin_out = floats(num_sources);
    params.best_finished_out = floats(num_sources);
    params.forced_out = ints(num_sources);
    params.ban_eos_out = bools(num_sources);
    launch_beam_read(params);
    return results;
}

inline std::tuple<Tensor, Tensor> beam_commit(TensorList tree, TensorList beams, const Tensor& slot,
                                              TensorList arrays, const OptionalTensor& eos_token,
                                              int64_t eos_id, int64_t finishing, bool keeps_best,
                                              int64_t top, int64_t certificate) {
    using A = SurvivorArrays;
    const SurvivorArguments survivors(slot, arrays);
    const IntList of_survivors = arrays[A::kParent].sizes();
    const Argument<float> score("score", arrays[A::kScore], ScalarType::kFloat32, of_survivors);
    const Argument<bool> has_nan("has_nan", arrays[A::kHasNan], ScalarType::kBool,
                                 {survivors.num_sources});
    const Argument<int32_t> eos_token_arg("eos_token", eos_token, ScalarType::kInt32, of_survivors);
    BeamCommitParams params{};
    params.beams = beams_of(beams);
    params.append = survivors.params(tree_of(tree), eos_id);
    check_same_slots(params.append.tree, params.beams);
    params.survivor_score = score;
    params.eos_token = eos_token_arg;
    params.has_nan = has_nan;
    params.finishing = finishing_of(finishing);
    params.stop = stop_of(keeps_best, top, certificate);
    const int64_t num_entries = survivors.num_sources * params.beams.max_entries;
    Tensor source = empty({num_entries}, slot.scalar_type(), slot.device());
    Tensor target = empty({num_entries}, slot.scalar_type(), slot.device());
    params.source_out = data<int32_t>(source);
    params.target_out = data<int32_t>(target);
    launch_beam_commit(params);
    return {source, target};
}

inline void beam_close(TensorList tree, TensorList beams, const Tensor& slot) {
    check_dim("slot", slot, 1);
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {slot.size(0)});
    BeamCloseParams params{};
    params.beams = beams_of(beams);
    params.release.tree = tree_of(tree);
    check_same_slots(params.release.tree, params.beams);
    params.release.slot = slot_arg;
    params.release.num_sources = slot.size(0);
    launch_beam_close(params);
}

}  // namespace pybeam
