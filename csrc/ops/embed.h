// The operator `embed`.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "../params/embed.h"
#include "check.h"
#include "linear.h"

namespace pybeam {

inline Tensor embed(const Tensor& token, const Tensor& position, const Tensor& table,
                    const OptionalTensor& scale, int64_t vocab_size, const Tensor& position_table,
                    double embedding_scale) {
    check_dim("token", token, 1);
    check_dim("position_table", position_table, 2);
    const int64_t num_rows = token.size(0), size = position_table.size(1);
    const Argument<int32_t> token_arg("token", token, at::kInt, {num_rows});
    const Argument<int32_t> position_arg("position", position, at::kInt, {num_rows});
    const Argument<float> table_arg("position_table", position_table, at::kFloat,
                                    position_table.sizes());
    const bool is_packed = table.dim() > 2;
    const bool is_int8 = table.scalar_type() == at::kChar;
    if (is_packed) {
        check_packed(table, scale, vocab_size, size);
    } else {
        check_tensor("table", table, table.scalar_type(), {vocab_size, size});
        check_contiguous("table", table);
        TORCH_CHECK_VALUE(scale.has_value() == is_int8, "`scale` must be given for int8 alone");
    }
    const Argument<float> scale_arg("scale", scale, at::kFloat, {vocab_size});
    Tensor y = at::empty({num_rows, size}, position_table.options());
    EmbedParams params{};
    params.token = token_arg;
    params.position = position_arg;
    params.num_rows = num_rows;
    params.weight = table.data_ptr();
    params.type = is_int8 ? WeightType::kInt8 : weight_type(table);
    params.is_packed = is_packed;
    params.scale = scale_arg;
    params.vocab_size = vocab_size;
    params.position_table = table_arg;
    params.num_positions = position_table.size(0);
    params.embedding_scale = static_cast<float>(embedding_scale);
    params.y = data<float>(y);
    params.size = size;
    params.num_threads = at::get_num_threads();
    launch_embed(params);
    return y;
}

}  // namespace pybeam
