// Which kernels multiply bfloat16 weights.
#pragma once

#include "../dispatch.h"

namespace pybeam {

// Those of `kernels()`. Some CPUs have an instruction for pairs of bfloat16 that is slower than two
// of float32: there the kernels without it, which widen. The first call decides for good, because
// the two differ in the order of sums: by the environment variable PYBEAM_BFLOAT16, "pairs" or
// "float32", or else by a millisecond of trying.
const Kernels& pair_kernels();

// "pairs" or "float32": how bfloat16 weights are multiplied.
const char* bfloat16_products();

// Choose for this process. Throws std::runtime_error if it is neither, or if these kernels have no
// instruction for pairs.
void set_bfloat16_products(const char* name);

}  // namespace pybeam
