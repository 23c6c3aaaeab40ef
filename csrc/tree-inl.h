// The operators `tree_append` and `tree_release`. Included by registration.cpp inside its
// namespace.

void check_state(const char* name, const Tensor& tensor, at::ScalarType dtype,
                 at::IntArrayRef shape) {
    check_tensor(name, tensor, dtype, shape);
    check_contiguous(name, tensor);
}

// The part of the tree that says which pages a slot holds.
Tree pages_of(const Tensor& num_nodes, const Tensor& num_live, const Tensor& num_free,
              const Tensor& page, const Tensor& num_pages, const Tensor& free_page,
              const Tensor& num_free_pages) {
    check_dim("page", page, 2);
    check_dim("free_page", free_page, 1);
    const int64_t num_slots = page.size(0);
    check_state("num_nodes", num_nodes, at::kInt, {num_slots});
    check_state("num_live", num_live, at::kInt, {num_slots});
    check_state("num_free", num_free, at::kInt, {num_slots});
    check_state("page", page, at::kInt, page.sizes());
    check_state("num_pages", num_pages, at::kInt, {num_slots});
    check_state("free_page", free_page, at::kInt, free_page.sizes());
    check_state("num_free_pages", num_free_pages, at::kInt, {1});
    Tree tree{};
    tree.num_nodes = data<int32_t>(num_nodes);
    tree.num_live = data<int32_t>(num_live);
    tree.num_free = data<int32_t>(num_free);
    tree.page = data<int32_t>(page);
    tree.num_pages = data<int32_t>(num_pages);
    tree.free_page = data<int32_t>(free_page);
    tree.num_free_pages = data<int32_t>(num_free_pages);
    tree.num_slots = num_slots;
    tree.max_pages = page.size(1);
    tree.max_free_pages = free_page.size(0);
    return tree;
}

// All arrays of a tree, in the order of `TreeArrays`.
Tree tree_of(at::TensorList arrays) {
    TORCH_CHECK_VALUE(arrays.size() == 15, "`tree` must have 15 arrays, but has ", arrays.size());
    const Tensor &token = arrays[0], &row_node = arrays[4], &live_mask = arrays[7];
    const Tensor& free_cell = arrays[9];
    check_dim("token", token, 2);
    check_dim("row_node", row_node, 2);
    check_dim("live_mask", live_mask, 3);
    check_dim("free_cell", free_cell, 2);
    Tree tree =
        pages_of(arrays[3], arrays[8], arrays[10], arrays[11], arrays[12], arrays[13], arrays[14]);
    tree.max_nodes = token.size(1);
    tree.max_rows = row_node.size(1);
    tree.max_live = live_mask.size(1);
    tree.mask_words = live_mask.size(2);
    tree.max_free = free_cell.size(1);
    TORCH_CHECK_VALUE(tree.mask_words == 1 || tree.mask_words == 2,
                      "`live_mask` must have 1 or 2 words, but has ", tree.mask_words);
    const int64_t num_slots = tree.num_slots;
    check_state("token", token, at::kInt, {num_slots, tree.max_nodes});
    check_state("parent", arrays[1], at::kInt, {num_slots, tree.max_nodes});
    check_state("log_prob", arrays[2], at::kFloat, {num_slots, tree.max_nodes});
    check_state("row_node", row_node, at::kInt, {num_slots, tree.max_rows});
    check_state("row_cell", arrays[5], at::kInt, {num_slots, tree.max_rows});
    check_state("live_cell", arrays[6], at::kInt, {num_slots, tree.max_live});
    check_state("live_mask", live_mask, at::kLong, {num_slots, tree.max_live, tree.mask_words});
    check_state("free_cell", free_cell, at::kInt, {num_slots, tree.max_free});
    tree.token = data<int32_t>(token);
    tree.parent = data<int32_t>(arrays[1]);
    tree.log_prob = data<float>(arrays[2]);
    tree.row_node = data<int32_t>(row_node);
    tree.row_cell = data<int32_t>(arrays[5]);
    tree.live_cell = data<int32_t>(arrays[6]);
    tree.live_mask = data<int64_t>(live_mask);
    tree.free_cell = data<int32_t>(free_cell);
    return tree;
}

// Survivors [A, C] of slots [A], checked.
struct SurvivorArguments {
    Argument<int32_t> slot, first, count, parent, token;
    Argument<float> log_prob;
    int64_t num_sources, capacity;

    SurvivorArguments(const Tensor& slot, const Tensor& first, const Tensor& count,
                      const Tensor& parent, const Tensor& token, const Tensor& log_prob)
        : slot("slot", slot, at::kInt, {slot.numel()}),
          first("first", first, at::kInt, {slot.numel()}),
          count("count", count, at::kInt, {slot.numel()}),
          parent("survivor_parent", parent, at::kInt, {slot.numel(), parent.size(-1)}),
          token("survivor_token", token, at::kInt, parent.sizes()),
          log_prob("survivor_log_prob", log_prob, at::kFloat, parent.sizes()),
          num_sources(slot.numel()),
          capacity(parent.size(-1)) {}

    TreeAppendParams params(const Tree& tree, int64_t eos_id) const {
        TreeAppendParams params{};
        params.tree = tree;
        params.slot = slot;
        params.first = first;
        params.count = count;
        params.survivor_parent = parent;
        params.survivor_token = token;
        params.survivor_log_prob = log_prob;
        params.num_sources = num_sources;
        params.capacity = capacity;
        params.eos_id = static_cast<int32_t>(eos_id);
        params.num_threads = at::get_num_threads();
        return params;
    }
};

void tree_append(const Tensor& token, const Tensor& parent, const Tensor& log_prob,
                 const Tensor& num_nodes, const Tensor& row_node, const Tensor& row_cell,
                 const Tensor& live_cell, const Tensor& live_mask, const Tensor& num_live,
                 const Tensor& free_cell, const Tensor& num_free, const Tensor& page,
                 const Tensor& num_pages, const Tensor& free_page, const Tensor& num_free_pages,
                 const Tensor& slot, const Tensor& first, const Tensor& count,
                 const Tensor& survivor_parent, const Tensor& survivor_token,
                 const Tensor& survivor_log_prob, int64_t eos_id) {
    check_dim("survivor_parent", survivor_parent, 2);
    const SurvivorArguments survivors(slot, first, count, survivor_parent, survivor_token,
                                      survivor_log_prob);
    const Tree tree =
        tree_of({token, parent, log_prob, num_nodes, row_node, row_cell, live_cell, live_mask,
                 num_live, free_cell, num_free, page, num_pages, free_page, num_free_pages});
    launch_tree_append(survivors.params(tree, eos_id));
}

void tree_release(const Tensor& num_nodes, const Tensor& num_live, const Tensor& num_free,
                  const Tensor& page, const Tensor& num_pages, const Tensor& free_page,
                  const Tensor& num_free_pages, const Tensor& slot) {
    check_dim("slot", slot, 1);
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {slot.size(0)});
    TreeReleaseParams params{};
    params.tree =
        pages_of(num_nodes, num_live, num_free, page, num_pages, free_page, num_free_pages);
    params.slot = slot_arg;
    params.num_sources = slot.size(0);
    launch_tree_release(params);
}
