// The inner kernels for NEON with DotProd.
#include "../dispatch.h"

#ifdef PYBEAM_HAS_NEON_EXTENSIONS

#include <arm_neon.h>

#include "inner_headers.h"

PYBEAM_TARGET("arch=armv8.2-a+dotprod")

#define PYBEAM_DOTS

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_neon-inl.h"
#include "pairs-inl.h"
#include "bytes_neon-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kNeonDotprodKernels = make_kernels("neon_dotprod");

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // PYBEAM_HAS_NEON_EXTENSIONS
