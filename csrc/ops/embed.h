// The operator `embed`.
#pragma once

#include "../params/embed.h"
#include "check.h"
#include "linear.h"

namespace pybeam {

// Fills in the tables. They must live while the result is used.
inline EmbedParams embed_of(const Tensor& table, const OptionalTensor& scale, int64_t vocab_size,
                            const Tensor& position_table, double embedding_scale) {
    check_dim("position_table", position_table, 2);
    const int64_t size = position_table.size(1);
    const bool is_packed = table.dim() > 2;
    const bool is_int8 = !is_packed && table.scalar_type() == ScalarType::kInt8;
    if (is_packed) {
        check_packed(table, scale, vocab_size, size);
    } else {
        check_tensor("table", table, table.scalar_type(), {vocab_size, size});
        check_contiguous("table", table);
        PYBEAM_CHECK_VALUE(table.scalar_type() != ScalarType::kUInt8,
                           "`table` must be packed in uint8, or int8 with a scale");
        PYBEAM_CHECK_VALUE(scale.has_value() == is_int8, "`scale` must be given for int8 alone");
    }
    PYBEAM_CHECK_VALUE(is_int8 || weight_type(table) != WeightType::kInt4,
                       "`table` must have other weights than int4");
    EmbedParams params{};
    params.weight = table.data_ptr();
    params.type = is_int8 ? WeightType::kInt8 : weight_type(table);
    params.is_packed = is_packed;
    if (scale.has_value())
        params.scale = state<float>("scale", *scale, ScalarType::kFloat32, {vocab_size});
    params.vocab_size = vocab_size;
    params.position_table = state<float>("position_table", position_table, ScalarType::kFloat32,
                                         position_table.sizes());
    params.num_positions = position_table.size(0);
    params.skipped_id = -1;
    params.embedding_scale = static_cast<float>(embedding_scale);
    params.size = size;
    return params;
}

inline Tensor embed(const Tensor& token, const Tensor& position, const Tensor& table,
                    const OptionalTensor& scale, int64_t vocab_size, const Tensor& position_table,
                    double embedding_scale) {
    check_dim("token", token, 1);
    const int64_t num_rows = token.size(0);
    EmbedParams params = embed_of(table, scale, vocab_size, position_table, embedding_scale);
    const Argument<int32_t> token_arg("token", token, ScalarType::kInt32, {num_rows});
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, {num_rows});
    Tensor y =
        empty({num_rows, params.size}, position_table.scalar_type(), position_table.device());
    params.token = token_arg;
    params.position = position_arg;
    params.num_rows = num_rows;
    params.y = data<float>(y);
    params.num_threads = num_threads();
    launch_embed(params);
    return y;
}

}  // namespace pybeam
