// The operator `linear`.
#pragma once

#include "../params/linear.h"
#include "check.h"

namespace pybeam {

// Sums of int8 products beyond this depth may not fit 32 bits.
constexpr int64_t kMostInt8Depth = 65536;

// Whether packed weights say that the largest inputs of a row keep more bits than others: the bytes
// of int8 weights are given as int8 then.
inline bool keeps_large(const Tensor& weight) {
    return weight.scalar_type() == ScalarType::kInt8 && weight.dim() == 4;
}

inline WeightType weight_type(const Tensor& weight) {
    if (keeps_large(weight)) return WeightType::kInt8;
    if (weight.scalar_type() == ScalarType::kUInt8) {
        return weight.dim() == 3 ? WeightType::kInt4 : WeightType::kInt8;
    }
    if (weight.scalar_type() == ScalarType::kInt16) return WeightType::kNarrow;
    return static_cast<WeightType>(float_type("weight", weight));
}

// Checks packed weights of so many columns.
inline void check_packed(const Tensor& weight, const OptionalTensor& scale, int64_t num_columns,
                         int64_t depth) {
    const WeightType type = weight_type(weight);
    const int64_t panels = (num_columns + kPanel - 1) / kPanel;
    const bool is_int8 = type == WeightType::kInt8;
    if (is_int8) {
        PYBEAM_CHECK_VALUE(depth <= kMostInt8Depth, "`weight` must have a depth of at most ",
                           kMostInt8Depth, " in int8, but has ", depth);
        check_tensor("weight", weight, weight.scalar_type(), {panels, (depth + 3) / 4, kPanel, 4});
    } else if (type == WeightType::kInt4) {
        check_tensor("weight", weight, ScalarType::kUInt8,
                     {panels, (depth + kGroup - 1) / kGroup, kPanel * kGroupBytes});
    } else if (type == WeightType::kNarrow) {
        PYBEAM_CHECK_VALUE(depth % 2 == 0, "`weight` must have an even depth in int16, but has ",
                           depth);
        check_tensor("weight", weight, ScalarType::kInt16, {panels, depth / 2, kPanel, 2});
    } else if (type == WeightType::kBFloat16) {
        check_tensor("weight", weight, ScalarType::kBFloat16, {panels, (depth + 1) / 2, kPanel, 2});
    } else {
        check_tensor("weight", weight, weight.scalar_type(), {panels, depth, kPanel});
    }
    check_contiguous("weight", weight);
    PYBEAM_CHECK_VALUE(scale.has_value() == is_int8,
                       "`scale` must be given for int8 weights alone");
}

inline void check_activation(int64_t activation) {
    PYBEAM_CHECK_VALUE(activation >= 0 && activation < kNumActivations,
                       "`activation` must be 0 to ", kNumActivations - 1, ", but is ", activation);
}

inline void linear(const Tensor& y, const Tensor& x, const Tensor& weight,
                   const OptionalTensor& scale, const OptionalTensor& bias, int64_t activation,
                   bool adds) {
    check_activation(activation);
    PYBEAM_CHECK_VALUE(!adds || activation == 0, "`activation` must be 0 where `adds`, but is ",
                       activation);
    check_dim("y", y, 2);
    check_dim("x", x, 2);
    const int64_t num_rows = x.size(0), depth = x.size(1), num_columns = y.size(1);
    check_tensor("x", x, ScalarType::kFloat32, {num_rows, depth});
    check_unit_stride("x", x);
    check_packed(weight, scale, num_columns, depth);
    check_tensor("y", y, ScalarType::kFloat32, {num_rows, num_columns});
    check_contiguous("y", y);
    const Argument<float> bias_arg("bias", bias, ScalarType::kFloat32, {num_columns});
    const Argument<float> scale_arg("scale", scale, ScalarType::kFloat32, {num_columns});
    LinearParams params{};
    params.x = data<float>(x);
    params.x_stride = x.stride(0);
    params.weight = weight.data_ptr();
    params.weight_type = weight_type(weight);
    params.keeps_large = keeps_large(weight);
    params.scale = scale_arg;
    params.bias = bias_arg;
    params.y = data<float>(y);
    params.num_rows = num_rows;
    params.depth = depth;
    params.num_columns = num_columns;
    params.activation = static_cast<Activation>(activation);
    params.adds = adds;
    params.num_threads = num_threads();
    launch_linear(params);
}

}  // namespace pybeam
