// The operator `tree_attention`.
#pragma once

#include "../params/tree_attention.h"
#include "check.h"

namespace pybeam {

// Checks which arguments come together.
inline void check_distances(const OptionalTensor& position, const OptionalTensor& cell_position,
                            const OptionalTensor& bias, int64_t window) {
    PYBEAM_CHECK_VALUE(position.has_value() == cell_position.has_value(),
                       "`position` and `cell_position` go together");
    PYBEAM_CHECK_VALUE(position.has_value() || (!bias.has_value() && window == 0),
                       "`bias` and `window` need `position` and `cell_position`");
    PYBEAM_CHECK_VALUE(window >= 0, "`window` must be at least 0, but is ", window);
    if (!bias.has_value()) return;
    check_dim("bias", *bias, 2);
    PYBEAM_CHECK_VALUE(bias->size(1) > 0, "`bias` must have a column");
}

// Checks queries [R, H, D], and keys and values [cells, H', D] where H' divides H. Keys and values
// of float32 queries may be bfloat16.
inline void check_heads(const Tensor& query, const Tensor& key, const Tensor& value) {
    check_dim("query", query, 3);
    check_dim("key", key, 3);
    const bool is_rounded =
        query.scalar_type() == ScalarType::kFloat32 && key.scalar_type() == ScalarType::kBFloat16;
    const ScalarType dtype = is_rounded ? ScalarType::kBFloat16 : query.scalar_type();
    check_tensor("key", key, dtype, {key.size(0), key.size(1), query.size(2)});
    check_tensor("value", value, dtype, key.sizes());
    for (const Tensor* tensor : {&query, &key, &value}) {
        check_unit_stride("query, key and value", *tensor);
    }
    PYBEAM_CHECK_VALUE(key.size(1) > 0 && query.size(1) % key.size(1) == 0, "`query` has ",
                       query.size(1), " heads, which must be a multiple of the ", key.size(1),
                       " heads of `key`");
}

// Fills in queries [R, H, D], keys and values [cells, H', D], which are checked, and what takes the
// result.
inline void set_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& out, TreeAttentionParams* params) {
    params->query = query.data_ptr();
    params->key = key.data_ptr();
    params->value = value.data_ptr();
    params->out = out.data_ptr();
    params->dtype = float_type("query", query);
    params->cell_dtype = float_type("key", key);
    params->query_row_stride = query.stride(0);
    params->query_head_stride = query.stride(1);
    params->key_cell_stride = key.stride(0);
    params->key_head_stride = key.stride(1);
    params->value_cell_stride = value.stride(0);
    params->value_head_stride = value.stride(1);
}

// Checks which of these are given. Masks or paths say what rows see; without them they see all.
inline void check_sight(const OptionalTensor& mask, const OptionalTensor& entry,
                        const OptionalTensor& path, const OptionalTensor& path_length,
                        const OptionalTensor& num_shared) {
    const bool has_paths = path.has_value();
    PYBEAM_CHECK_VALUE(!has_paths || !mask.has_value(), "there must be `mask` or `path`, not both");
    PYBEAM_CHECK_VALUE((mask.has_value() || has_paths) == entry.has_value(),
                       "`entry` goes with `mask` or `path`");
    PYBEAM_CHECK_VALUE(has_paths == path_length.has_value(),
                       "`path` and `path_length` go together");
    PYBEAM_CHECK_VALUE(has_paths || !num_shared.has_value(), "`num_shared` goes with `path`");
    if (has_paths) check_dim("path", *path, 3);
}

inline Tensor tree_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                             const Tensor& offset, const Tensor& slot, const Tensor& cell,
                             const Tensor& num_cells, const OptionalTensor& mask,
                             const OptionalTensor& entry, double scale,
                             const OptionalTensor& position, const OptionalTensor& cell_position,
                             const OptionalTensor& bias, int64_t origin, int64_t window,
                             double soft_cap, const OptionalTensor& path,
                             const OptionalTensor& path_length, const OptionalTensor& num_shared) {
    check_heads(query, key, value);
    check_distances(position, cell_position, bias, window);
    check_dim("slot", slot, 1);
    check_dim("cell", cell, 2);
    check_sight(mask, entry, path, path_length, num_shared);
    const int64_t num_sources = slot.size(0), num_slots = cell.size(0), max_cells = cell.size(1);
    if (mask.has_value()) check_dim("mask", *mask, 3);
    const int64_t mask_words = mask.has_value() ? mask->size(2) : 0;
    const Argument<int32_t> offset_arg("offset", offset, ScalarType::kInt32, {num_sources + 1});
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {num_sources});
    const Argument<int32_t> cell_arg("cell", cell, ScalarType::kInt32, {num_slots, max_cells});
    const Argument<int32_t> num_cells_arg("num_cells", num_cells, ScalarType::kInt32, {num_slots});
    const Argument<int64_t> mask_arg("mask", mask, ScalarType::kInt64,
                                     {num_slots, max_cells, mask_words});
    const Argument<int32_t> entry_arg("entry", entry, ScalarType::kInt32, {query.size(0)});
    const int64_t max_entries = path.has_value() ? path->size(1) : 0;
    const int64_t max_path = path.has_value() ? path->size(2) : 0;
    const Argument<int32_t> path_arg("path", path, ScalarType::kInt32,
                                     {num_slots, max_entries, max_path});
    const Argument<int32_t> length_arg("path_length", path_length, ScalarType::kInt32, {num_slots});
    const Argument<int32_t> shared_arg("num_shared", num_shared, ScalarType::kInt32, {num_slots});
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, {query.size(0)});
    const Argument<int32_t> cell_position_arg("cell_position", cell_position, ScalarType::kInt32,
                                              {key.size(0)});
    const int64_t bias_size = bias.has_value() ? bias->size(1) : 0;
    const Argument<float> bias_arg("bias", bias, ScalarType::kFloat32, {query.size(1), bias_size});
    Tensor out = empty(query.sizes(), query.scalar_type(), query.device());

    TreeAttentionParams params{};
    set_heads(query, key, value, out, &params);
    params.offset = offset_arg;
    params.slot = slot_arg;
    params.cell = cell_arg;
    params.num_cells = num_cells_arg;
    params.mask = mask_arg;
    params.entry = entry_arg;
    params.path = path_arg;
    params.path_length = length_arg;
    params.num_shared = shared_arg;
    params.max_entries = max_entries;
    params.max_path = max_path;
    params.num_rows = query.size(0);
    params.num_sources = num_sources;
    params.num_slots = num_slots;
    params.num_pool_cells = key.size(0);
    params.num_heads = query.size(1);
    params.num_key_heads = key.size(1);
    params.head_size = query.size(2);
    params.max_cells = max_cells;
    params.mask_words = mask_words;
    params.scale = static_cast<float>(scale);
    params.soft_cap = static_cast<float>(soft_cap);
    params.position = position_arg;
    params.cell_position = cell_position_arg;
    params.bias = bias_arg;
    params.bias_size = bias_size;
    params.bias_origin = static_cast<int32_t>(origin);
    params.window = static_cast<int32_t>(window);
    params.num_threads = num_threads();
    launch_tree_attention(params);
    return out;
}

}  // namespace pybeam
