// The operator `accept_draft`. Included by registration.cpp inside its namespace.

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> accept_draft(const Tensor& logits,
                                                                const Tensor& draft,
                                                                int64_t eos_id) {
    check_dim("logits", logits, 3);
    check_unit_stride("logits", logits);
    const int64_t num_rows = logits.size(0), num_positions = logits.size(1);
    TORCH_CHECK_VALUE(num_positions > 0 && logits.size(2) > 0,
                      "`logits` must have at least one position and one token, but is ",
                      logits.sizes());
    TORCH_CHECK_VALUE(logits.size(2) <= INT32_MAX, "`logits` has too many columns");
    const Argument<int32_t> draft_arg("draft", draft, at::kInt, {num_rows, num_positions});
    const auto ints = draft.options();
    Tensor token = at::empty({num_rows, num_positions}, ints);
    Tensor log_prob = at::empty({num_rows, num_positions}, ints.dtype(at::kFloat));
    Tensor accepted = at::empty({num_rows}, ints);
    Tensor eos_position = at::empty({num_rows}, ints);
    Tensor has_nan = at::empty({num_rows}, ints.dtype(at::kBool));

    AcceptDraftParams params{};
    params.logits = logits.data_ptr();
    params.dtype = float_type("logits", logits);
    params.row_stride = logits.stride(0);
    params.position_stride = logits.stride(1);
    params.draft = draft_arg;
    params.num_rows = num_rows;
    params.num_positions = num_positions;
    params.vocab_size = logits.size(2);
    params.eos_id = static_cast<int32_t>(eos_id);
    params.num_threads = at::get_num_threads();
    params.token_out = data<int32_t>(token);
    params.log_prob_out = data<float>(log_prob);
    params.accepted_out = data<int32_t>(accepted);
    params.eos_position_out = data<int32_t>(eos_position);
    params.has_nan_out = data<bool>(has_nan);
    launch_accept_draft(params);
    return {token, log_prob, accepted, eos_position, has_nan};
}
