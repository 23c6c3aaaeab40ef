// The operators on beams. Included by registration.cpp inside its namespace.

// All arrays of the beams, in the order of `Beams` in `pybeam/backends/arrays.py`.
Beams beams_of(at::TensorList arrays) {
    TORCH_CHECK_VALUE(arrays.size() == 10, "`beams` must have 10 arrays, but has ", arrays.size());
    const Tensor &prefix = arrays[2], &score = arrays[3], &finished = arrays[8];
    check_dim("prefix", prefix, 2);
    check_dim("score", score, 2);
    check_dim("finished_ints", finished, 3);
    Beams beams{};
    const int64_t num_slots = beams.num_slots = score.size(0);
    beams.max_prefix = prefix.size(1);
    beams.max_entries = score.size(1);
    beams.max_finished = finished.size(1);
    check_state("ints", arrays[0], at::kInt, {num_slots, Beams::kNumInts});
    check_state("floats", arrays[1], at::kFloat, {num_slots, Beams::kNumFloats});
    check_state("prefix", prefix, at::kInt, {num_slots, beams.max_prefix});
    check_state("score", score, at::kFloat, {num_slots, beams.max_entries});
    check_state("is_alive", arrays[4], at::kBool, score.sizes());
    check_state("ended_length", arrays[5], at::kInt, score.sizes());
    check_state("eos_log_prob", arrays[6], at::kFloat, score.sizes());
    check_state("eos_token", arrays[7], at::kInt, score.sizes());
    check_state("finished_ints", finished, at::kInt,
                {num_slots, beams.max_finished, Beams::kNumFinishedInts});
    check_state("finished_floats", arrays[9], at::kFloat,
                {num_slots, beams.max_finished, Beams::kNumFinishedFloats});
    beams.ints = data<int32_t>(arrays[0]);
    beams.floats = data<float>(arrays[1]);
    beams.prefix = data<int32_t>(prefix);
    beams.score = data<float>(score);
    beams.is_alive = data<bool>(arrays[4]);
    beams.ended_length = data<int32_t>(arrays[5]);
    beams.eos_log_prob = data<float>(arrays[6]);
    beams.eos_token = data<int32_t>(arrays[7]);
    beams.finished_ints = data<int32_t>(finished);
    beams.finished_floats = data<float>(arrays[9]);
    return beams;
}

Finishing finishing_of(int64_t finishing) {
    TORCH_CHECK_VALUE(finishing >= 0 && finishing <= 3, "`finishing` must be 0 to 3, but is ",
                      finishing);
    return static_cast<Finishing>(finishing);
}

void check_same_slots(const Tree& tree, const Beams& beams) {
    TORCH_CHECK_VALUE(tree.num_slots == beams.num_slots && tree.max_rows == beams.max_entries,
                      "`tree` and `beams` must have the same slots and rows");
}

void beam_open(at::TensorList tree, at::TensorList beams, const Tensor& slot, const Tensor& ints,
               const Tensor& floats, int64_t start_id) {
    check_dim("slot", slot, 1);
    const int64_t num_sources = slot.size(0);
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_sources});
    const Argument<int32_t> ints_arg("ints", ints, at::kInt, {num_sources, Beams::kNumInts});
    const Argument<float> floats_arg("floats", floats, at::kFloat,
                                     {num_sources, Beams::kNumFloats});
    BeamOpenParams params{};
    params.beams = beams_of(beams);
    params.tree = tree_of(tree);
    check_same_slots(params.tree, params.beams);
    params.slot = slot_arg;
    params.ints = ints_arg;
    params.floats = floats_arg;
    params.num_sources = num_sources;
    params.start_id = static_cast<int32_t>(start_id);
    launch_beam_open(params);
}

std::vector<Tensor> beam_read(const Tensor& token, const Tensor& row_node, const Tensor& row_cell,
                              at::TensorList arrays, const Tensor& slot, bool refills,
                              int64_t num_rows, int64_t num_entries) {
    check_dim("token", token, 2);
    check_dim("slot", slot, 1);
    BeamReadParams params{};
    params.beams = beams_of(arrays);
    const Beams& beams = params.beams;
    const int64_t num_sources = slot.size(0);
    check_state("token", token, at::kInt, {beams.num_slots, token.size(1)});
    check_state("row_node", row_node, at::kInt, {beams.num_slots, beams.max_entries});
    check_state("row_cell", row_cell, at::kInt, {beams.num_slots, beams.max_entries});
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_sources});
    params.token = data<int32_t>(token);
    params.row_node = data<int32_t>(row_node);
    params.row_cell = data<int32_t>(row_cell);
    params.max_nodes = token.size(1);
    params.slot = slot_arg;
    params.num_sources = num_sources;
    params.refills = refills;
    TORCH_CHECK_VALUE(num_rows >= 0 && num_entries >= 0,
                      "`num_rows` and `num_entries` must not be negative");
    params.num_rows = num_rows;
    params.num_entries = num_entries;

    std::vector<Tensor> results;
    const auto result = [&](at::ScalarType dtype, int64_t size) {
        return results.emplace_back(at::empty({size}, slot.options().dtype(dtype))).data_ptr();
    };
    const auto ints = [&](int64_t size) { return static_cast<int32_t*>(result(at::kInt, size)); };
    const auto floats = [&](int64_t size) { return static_cast<float*>(result(at::kFloat, size)); };
    const auto bools = [&](int64_t size) { return static_cast<bool*>(result(at::kBool, size)); };
    params.row_offset_out = ints(num_sources + 1);
    params.token_out = ints(num_rows);
    params.position_out = ints(num_rows);
    params.row_slot_out = ints(num_rows);
    params.bit_out = ints(num_rows);
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

std::tuple<Tensor, Tensor> beam_commit(at::TensorList tree, at::TensorList beams,
                                       const Tensor& slot, const Tensor& survivor_token,
                                       const Tensor& survivor_parent, const Tensor& survivor_score,
                                       const Tensor& survivor_log_prob, const Tensor& count,
                                       const Tensor& first, const Tensor& has_nan,
                                       const OptionalTensor& survivor_raw, int64_t eos_id,
                                       int64_t finishing, bool keeps_best, int64_t top,
                                       int64_t certificate) {
    check_dim("survivor_parent", survivor_parent, 2);
    const SurvivorArguments survivors(slot, first, count, survivor_parent, survivor_token,
                                      survivor_log_prob);
    const Argument<float> score("survivor_score", survivor_score, at::kFloat,
                                survivor_parent.sizes());
    const Argument<bool> has_nan_arg("has_nan", has_nan, at::kBool, {survivors.num_sources});
    const Argument<int32_t> raw("survivor_raw", survivor_raw, at::kInt, survivor_parent.sizes());
    BeamCommitParams params{};
    params.beams = beams_of(beams);
    params.append = survivors.params(tree_of(tree), eos_id);
    check_same_slots(params.append.tree, params.beams);
    params.survivor_score = score;
    params.survivor_raw = raw;
    params.has_nan = has_nan_arg;
    params.finishing = finishing_of(finishing);
    TORCH_CHECK_VALUE(top >= 0 && top <= 2, "`top` must be 0 to 2, but is ", top);
    TORCH_CHECK_VALUE(certificate >= 0 && certificate <= 2, "`certificate` must be 0 to 2, but is ",
                      certificate);
    params.stop = {keeps_best, static_cast<Top>(top), static_cast<Certificate>(certificate)};
    const int64_t num_entries = survivors.num_sources * params.beams.max_entries;
    Tensor source = at::empty({num_entries}, slot.options());
    Tensor target = at::empty({num_entries}, slot.options());
    params.source_out = data<int32_t>(source);
    params.target_out = data<int32_t>(target);
    launch_beam_commit(params);
    return {source, target};
}

void beam_close(at::TensorList tree, at::TensorList beams, const Tensor& slot) {
    check_dim("slot", slot, 1);
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {slot.size(0)});
    BeamCloseParams params{};
    params.beams = beams_of(beams);
    params.release.tree = tree_of(tree);
    check_same_slots(params.release.tree, params.beams);
    params.release.slot = slot_arg;
    params.release.num_sources = slot.size(0);
    launch_beam_close(params);
}
