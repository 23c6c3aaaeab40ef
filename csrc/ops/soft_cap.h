// The operator `soft_cap`.
#pragma once

#include "../params/soft_cap.h"
#include "check.h"

namespace pybeam {

inline void soft_cap(const Tensor& x, double cap) {
    PYBEAM_CHECK_VALUE(cap > 0, "`cap` must be positive, but is ", cap);
    SoftCapParams params{};
    params.cap = static_cast<float>(cap);
    params.x = state<float>("x", x, ScalarType::kFloat32, x.sizes());
    params.size = x.numel();
    params.num_threads = num_threads();
    launch_soft_cap(params);
}

}  // namespace pybeam
