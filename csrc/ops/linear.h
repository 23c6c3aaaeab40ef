// The operator `linear`.
#pragma once

#include <ATen/Parallel.h>

#include "../params/linear.h"
#include "check.h"

namespace pybeam {

inline void linear(const Tensor& y, const Tensor& x, const Tensor& weight,
                   const OptionalTensor& bias, int64_t activation, bool adds) {
    TORCH_CHECK_VALUE(activation >= 0 && activation < kNumActivations, "`activation` must be 0 to ",
                      kNumActivations - 1, ", but is ", activation);
    TORCH_CHECK_VALUE(!adds || activation == 0, "`activation` must be 0 where `adds`, but is ",
                      activation);
    check_dim("y", y, 2);
    check_dim("x", x, 2);
    const int64_t num_rows = x.size(0), depth = x.size(1), num_columns = y.size(1);
    check_tensor("x", x, at::kFloat, {num_rows, depth});
    check_unit_stride("x", x);
    const DType weight_dtype = float_type("weight", weight);
    const int64_t panels = (num_columns + kPanel - 1) / kPanel;
    if (weight_dtype == DType::kBFloat16) {
        check_tensor("weight", weight, at::kBFloat16, {panels, (depth + 1) / 2, kPanel, 2});
    } else {
        check_tensor("weight", weight, weight.scalar_type(), {panels, depth, kPanel});
    }
    check_contiguous("weight", weight);
    check_tensor("y", y, at::kFloat, {num_rows, num_columns});
    check_contiguous("y", y);
    const Argument<float> bias_arg("bias", bias, at::kFloat, {num_columns});
    LinearParams params{};
    params.x = data<float>(x);
    params.x_stride = x.stride(0);
    params.weight = weight.data_ptr();
    params.weight_dtype = weight_dtype;
    params.bias = bias_arg;
    params.y = data<float>(y);
    params.num_rows = num_rows;
    params.depth = depth;
    params.num_columns = num_columns;
    params.activation = static_cast<Activation>(activation);
    params.adds = adds;
    params.num_threads = at::get_num_threads();
    launch_linear(params);
}

}  // namespace pybeam
