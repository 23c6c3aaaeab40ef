// Arguments of the kernel `soft_cap`.
#pragma once

#include <cstdint>

namespace pybeam {

// x [size] becomes cap * tanh(x / cap).
struct SoftCapParams {
    float cap;
    float* x;
    int64_t size;
    int num_threads;
};

void launch_soft_cap(const SoftCapParams& params);

}  // namespace pybeam
