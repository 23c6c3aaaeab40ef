// The inner kernels for NEON with DotProd, I8MM and BF16.
#include "../dispatch.h"

#ifdef PYBEAM_HAS_NEON_EXTENSIONS

#include <arm_neon.h>

#include "inner_headers.h"

PYBEAM_TARGET("arch=armv8.2-a+dotprod+i8mm+bf16")

#define PYBEAM_MIXED_DOTS

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_neon-inl.h"
#include "pairs_neon_bf16-inl.h"
#include "bytes_neon-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kNeonBf16Kernels = make_kernels("neon_bf16");

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // PYBEAM_HAS_NEON_EXTENSIONS
