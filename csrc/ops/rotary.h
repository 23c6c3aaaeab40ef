// The operator `rotary`.
#pragma once

#include "../params/rotary.h"
#include "check.h"

namespace pybeam {

inline Tensor rotary(const Tensor& x, const Tensor& position, const Tensor& cos,
                     const Tensor& sin) {
    check_dim("x", x, 3);
    check_dim("cos", cos, 2);
    check_tensor("x", x, ScalarType::kFloat32, x.sizes());
    check_unit_stride("x", x);
    PYBEAM_CHECK_VALUE(x.size(2) % 2 == 0, "the last size of `x` must be even, but is ", x.size(2));
    const int64_t num_positions = cos.size(0), half = x.size(2) / 2;
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, {x.size(0)});
    const Argument<float> cos_arg("cos", cos, ScalarType::kFloat32, {num_positions, half});
    const Argument<float> sin_arg("sin", sin, ScalarType::kFloat32, {num_positions, half});
    Tensor y = empty(x.sizes(), x.scalar_type(), x.device());
    RotaryParams params{};
    params.x = data<float>(x);
    params.x_row_stride = x.stride(0);
    params.x_head_stride = x.stride(1);
    params.position = position_arg;
    params.table = {cos_arg, sin_arg, num_positions, half};
    params.y = data<float>(y);
    params.num_rows = x.size(0);
    params.num_heads = x.size(1);
    params.size = x.size(2);
    params.num_threads = num_threads();
    launch_rotary(params);
    return y;
}

}  // namespace pybeam
