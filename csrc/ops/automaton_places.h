// The operator `automaton_places`.
#pragma once

#include "../params/automaton_places.h"
#include "automata.h"

namespace pybeam {

// Shapes the rows of a step.
inline void automaton_places(const Tensor& log_probs, TensorList arrays, TensorList inputs,
                             const Tensor& token, const Tensor& parent, IntList eos_ids) {
    check_size("inputs", inputs, 11);
    const Tensor &state_of = inputs[0], &child = inputs[1], &row_slot = inputs[2],
                 &node = inputs[3], &entry = inputs[4], &position = inputs[5], &offset = inputs[6],
                 &prefix_length = inputs[7], &score = inputs[8], &entries = inputs[9],
                 &width = inputs[10];
    const AutomataArguments own(arrays);
    PYBEAM_CHECK_VALUE(!own.automata.is_tree(), "`arrays` must be those of a pool");
    check_dim("log_probs", log_probs, 2);
    check_unit_stride("log_probs", log_probs);
    PYBEAM_CHECK_VALUE(float_type("log_probs", log_probs) == DType::kFloat32,
                       "`log_probs` must be float32, but is ", log_probs.scalar_type());
    for (const auto& [name, tensor] : {std::pair{"state", &state_of}, std::pair{"child", &child},
                                       std::pair{"score", &score}, std::pair{"token", &token}}) {
        check_dim(name, *tensor, 2);
    }
    check_dim("width", width, 1);
    constexpr auto kInt = ScalarType::kInt32;
    const int64_t num_rows = log_probs.size(0), num_slots = state_of.size(0);
    const int64_t num_beams = width.size(0), num_best = token.size(1);
    const Argument<int32_t> state_arg("state", state_of, kInt, state_of.sizes());
    const Argument<int32_t> child_arg("child", child, kInt, {num_slots, child.size(1)});
    const Argument<int32_t> slot_arg("row_slot", row_slot, kInt, {num_rows});
    const Argument<int32_t> node_arg("node", node, kInt, {num_rows});
    const Argument<int32_t> entry_arg("entry", entry, kInt, {num_rows});
    const Argument<int32_t> position_arg("position", position, kInt, {num_rows});
    const Argument<int32_t> offset_arg("offset", offset, kInt, {num_beams + 1});
    const Argument<int32_t> prefix_arg("prefix_length", prefix_length, kInt, {num_slots});
    const Argument<float> score_arg("score", score, ScalarType::kFloat32,
                                    {num_slots, score.size(1)});
    const Argument<int32_t> entries_arg("entries", entries, kInt, {num_beams + 1});
    const Argument<int32_t> width_arg("width", width, kInt, {num_beams});
    const Argument<int32_t> token_arg("token", token, kInt, {num_beams, num_best});
    const Argument<int32_t> parent_arg("parent", parent, kInt, {num_beams, num_best});
    AutomatonPlacesParams params{};
    params.automata = own.automata;
    params.log_probs = data<float>(log_probs);
    params.row_stride = log_probs.stride(0);
    params.vocab_size = log_probs.size(1);
    PYBEAM_CHECK_VALUE(num_rows < 2 || params.row_stride >= params.vocab_size,
                       "rows of `log_probs` must not overlap; pass log_probs.contiguous()");
    for (const int64_t id : eos_ids) {
        PYBEAM_CHECK_VALUE(id >= 0 && id < params.vocab_size, "`eos_ids` must be 0 to ",
                           params.vocab_size - 1, ", but hold ", id);
    }
    params.num_rows = num_rows;
    params.state = state_arg;
    params.num_slots = num_slots;
    params.max_nodes = state_of.size(1);
    params.child = child_arg;
    params.num_children = child.size(1);
    params.row_slot = slot_arg;
    params.node = node_arg;
    params.entry = entry_arg;
    params.position = position_arg;
    params.offset = offset_arg;
    params.prefix_length = prefix_arg;
    params.score = score_arg;
    params.max_entries = score.size(1);
    params.entries = entries_arg;
    params.width = width_arg;
    params.num_beams = num_beams;
    params.token = token_arg;
    params.parent = parent_arg;
    params.num_best = num_best;
    params.eos = eos_of(eos_ids);
    params.num_threads = num_threads();
    launch_automaton_places(params);
}

}  // namespace pybeam
