// The operator `rms_norm`.
#pragma once

#include "../params/rms_norm.h"
#include "check.h"

namespace pybeam {

inline Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
    PYBEAM_CHECK_VALUE(x.dim() == 2 || x.dim() == 3, "`x` must have 2 or 3 dimensions, but has ",
                       x.dim());
    check_tensor("x", x, ScalarType::kFloat32, x.sizes());
    check_unit_stride("x", x);
    const int64_t size = x.size(-1);
    const Argument<float> weight_arg("weight", weight, ScalarType::kFloat32, {size});
    Tensor y = empty(x.sizes(), x.scalar_type(), x.device());
    RmsNormParams params{};
    params.x = data<float>(x);
    params.x_row_stride = x.stride(0);
    params.x_head_stride = x.dim() == 3 ? x.stride(1) : 0;
    params.weight = weight_arg;
    params.epsilon = static_cast<float>(epsilon);
    params.y = data<float>(y);
    params.num_rows = x.size(0);
    params.num_heads = x.dim() == 3 ? x.size(1) : 1;
    params.size = size;
    params.num_threads = num_threads();
    launch_rms_norm(params);
    return y;
}

}  // namespace pybeam
