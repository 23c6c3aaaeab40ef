// The operators `gather_rows`, `scatter_rows` and `backtrace`. Included by registration.cpp inside
// its namespace.

void gather_rows(at::TensorList tensors, const Tensor& source, const Tensor& target) {
    check_dim("source", source, 1);
    if (tensors.empty() || source.size(0) == 0) return;
    const Argument<int32_t> source_arg("source", source, at::kInt, {source.size(0)});
    const Argument<int32_t> target_arg("target", target, at::kInt, {source.size(0)});
    std::vector<RowTensor> rows;
    for (const Tensor& tensor : tensors) {
        rows.push_back(rows_of("tensors", tensor));
        TORCH_CHECK_VALUE(tensor.size(0) == tensors[0].size(0), "`tensors` must all have ",
                          tensors[0].size(0), " rows, but one has ", tensor.size(0));
    }
    GatherRowsParams params{};
    params.tensors = rows.data();
    params.num_tensors = static_cast<int64_t>(rows.size());
    params.source = source_arg;
    params.target = target_arg;
    params.num_moves = source.size(0);
    params.num_rows = tensors[0].size(0);
    params.num_threads = at::get_num_threads();
    launch_gather_rows(params);
}

void scatter_rows(const Tensor& pool, const Tensor& index, const Tensor& rows) {
    check_dim("index", index, 1);
    const Argument<int32_t> index_arg("index", index, at::kInt, {index.size(0)});
    ScatterRowsParams params{};
    params.pool = rows_of("pool", pool);
    params.rows = rows_of("rows", rows);
    TORCH_CHECK_VALUE(rows.scalar_type() == pool.scalar_type(), "`rows` must be ",
                      pool.scalar_type(), " as `pool`, but is ", rows.scalar_type());
    TORCH_CHECK_VALUE(
        rows.size(0) == index.size(0) && rows.sizes().slice(1) == pool.sizes().slice(1),
        "`rows` must be [", index.size(0), ", ...] with rows like those of `pool`, ", pool.sizes(),
        ", but is ", rows.sizes());
    params.index = index_arg;
    params.num_index = index.size(0);
    params.num_pool_rows = pool.size(0);
    params.num_threads = at::get_num_threads();
    launch_scatter_rows(params);
}

std::tuple<Tensor, Tensor> backtrace(const Tensor& token, const Tensor& parent, const Tensor& slot,
                                     const Tensor& node, int64_t capacity) {
    check_dim("token", token, 2);
    check_dim("slot", slot, 1);
    TORCH_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
    const int64_t num_hypotheses = slot.size(0);
    const Argument<int32_t> token_arg("token", token, at::kInt, token.sizes());
    const Argument<int32_t> parent_arg("parent", parent, at::kInt, token.sizes());
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_hypotheses});
    const Argument<int32_t> node_arg("node", node, at::kInt, {num_hypotheses});
    Tensor tokens = at::empty({num_hypotheses, capacity}, token.options());
    Tensor length = at::empty({num_hypotheses}, token.options());
    BacktraceParams params{};
    params.token = token_arg;
    params.parent = parent_arg;
    params.slot = slot_arg;
    params.node = node_arg;
    params.num_slots = token.size(0);
    params.max_nodes = token.size(1);
    params.num_hypotheses = num_hypotheses;
    params.capacity = capacity;
    params.tokens_out = data<int32_t>(tokens);
    params.length_out = data<int32_t>(length);
    launch_backtrace(params);
    return {tokens, length};
}
