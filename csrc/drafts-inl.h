// The operators on drafts. Included by registration.cpp inside its namespace.

// The arrays of the drafts, in the order of `Drafts` in `pybeam/backends/arrays.py`.
Drafts drafts_of(at::TensorList arrays, const Beams& beams) {
    TORCH_CHECK_VALUE(arrays.size() == 2, "`drafts` must have 2 arrays, but has ", arrays.size());
    const Tensor &ints = arrays[0], &guess = arrays[1];
    check_dim("guess", guess, 2);
    check_state("draft_ints", ints, at::kInt, {beams.num_slots, Drafts::kNumInts});
    check_state("guess", guess, at::kInt, {beams.num_slots, guess.size(1)});
    return Drafts{data<int32_t>(ints), data<int32_t>(guess), beams.num_slots, guess.size(1)};
}

void draft_open(at::TensorList tree, at::TensorList beams, at::TensorList drafts,
                const Tensor& slot, const Tensor& ints, const Tensor& floats,
                const Tensor& draft_ints, int64_t start_id, int64_t eos_id, int64_t vocab_size) {
    check_dim("slot", slot, 1);
    const int64_t num_sources = slot.size(0);
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_sources});
    const Argument<int32_t> ints_arg("ints", ints, at::kInt, {num_sources, Beams::kNumInts});
    const Argument<float> floats_arg("floats", floats, at::kFloat,
                                     {num_sources, Beams::kNumFloats});
    const Argument<int32_t> draft_arg("draft_ints", draft_ints, at::kInt,
                                      {num_sources, Drafts::kNumInts});
    DraftOpenParams params{};
    params.open.beams = beams_of(beams);
    params.open.tree = tree_of(tree);
    check_same_slots(params.open.tree, params.open.beams);
    params.open.slot = slot_arg;
    params.open.ints = ints_arg;
    params.open.floats = floats_arg;
    params.open.num_sources = num_sources;
    params.open.start_id = static_cast<int32_t>(start_id);
    params.drafts = drafts_of(drafts, params.open.beams);
    params.ints = draft_arg;
    params.eos_id = static_cast<int32_t>(eos_id);
    params.vocab_size = vocab_size;
    launch_draft_open(params);
}

void draft_commit(at::TensorList tree, at::TensorList beams, at::TensorList drafts,
                  const Tensor& slot, const Tensor& token, const Tensor& log_prob,
                  const Tensor& has_nan, const OptionalTensor& raw, int64_t eos_id,
                  int64_t vocab_size) {
    check_dim("slot", slot, 1);
    check_dim("token", token, 2);
    const int64_t num_sources = slot.size(0), num_rows = token.size(0);
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_sources});
    const Argument<int32_t> token_arg("token", token, at::kInt, {num_rows, 1});
    const Argument<float> log_prob_arg("log_prob", log_prob, at::kFloat, {num_rows, 1});
    const Argument<bool> has_nan_arg("has_nan", has_nan, at::kBool, {num_rows});
    const Argument<int32_t> raw_arg("raw", raw, at::kInt, {num_rows, 1});
    DraftCommitParams params{};
    params.tree = tree_of(tree);
    params.beams = beams_of(beams);
    check_same_slots(params.tree, params.beams);
    params.drafts = drafts_of(drafts, params.beams);
    params.slot = slot_arg;
    params.num_sources = num_sources;
    params.token = token_arg;
    params.raw = raw_arg;
    params.log_prob = log_prob_arg;
    params.has_nan = has_nan_arg;
    params.num_rows = num_rows;
    params.eos_id = static_cast<int32_t>(eos_id);
    params.vocab_size = vocab_size;
    launch_draft_commit(params);
}
