// The operator `prompt_attention`.
#pragma once

#include "sublayers.h"
#include "tree_attention.h"

namespace pybeam {

inline Tensor prompt_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& offset, const Tensor& slot, const Tensor& cell,
                               const Tensor& num_cells, const Tensor& position, double scale,
                               int64_t window, double soft_cap, const OptionalTensor& bias) {
    check_heads(query, key, value);
    PYBEAM_CHECK_VALUE(window >= 0, "`window` must be at least 0, but is ", window);
    const int64_t num_rows = query.size(0);
    const Heads heads{query.size(1), key.size(1), query.size(2)};
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, {num_rows});
    if (bias.has_value()) {
        check_dim("bias", *bias, 2);
        PYBEAM_CHECK_VALUE(bias->size(1) > 0, "`bias` must have a column");
    }
    const int64_t bias_size = bias.has_value() ? bias->size(1) : 0;
    const Argument<float> bias_arg("bias", bias, ScalarType::kFloat32, {heads.num, bias_size});
    TreeAttentionParams params =
        attention_of({offset, slot, cell, num_cells}, num_rows, heads, key.size(0), scale);
    Tensor out = empty(query.sizes(), query.scalar_type(), query.device());
    set_heads(query, key, value, out, &params);
    params.position = position_arg;
    params.window = static_cast<int32_t>(window);
    params.soft_cap = static_cast<float>(soft_cap);
    params.in_order = true;
    params.bias = bias_arg;
    params.bias_size = bias_size;
    params.num_threads = num_threads();
    launch_tree_attention(params);
    return out;
}

}  // namespace pybeam
