// The operator `layer_norm`.
#pragma once

#include "../params/layer_norm.h"
#include "check.h"

namespace pybeam {

inline Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         double epsilon) {
    check_dim("x", x, 2);
    check_tensor("x", x, ScalarType::kFloat32, x.sizes());
    check_unit_stride("x", x);
    const int64_t size = x.size(1);
    const Argument<float> weight_arg("weight", weight, ScalarType::kFloat32, {size});
    const Argument<float> bias_arg("bias", bias, ScalarType::kFloat32, {size});
    Tensor y = empty(x.sizes(), x.scalar_type(), x.device());
    LayerNormParams params{};
    params.x = data<float>(x);
    params.x_stride = x.stride(0);
    params.weight = weight_arg;
    params.bias = bias_arg;
    params.epsilon = static_cast<float>(epsilon);
    params.y = data<float>(y);
    params.num_rows = x.size(0);
    params.size = size;
    params.num_threads = num_threads();
    launch_layer_norm(params);
    return y;
}

}  // namespace pybeam
