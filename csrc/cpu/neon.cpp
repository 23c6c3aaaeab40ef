// The inner kernels for NEON, which every ARM64 CPU has.
#ifdef __aarch64__

#include <arm_neon.h>

#include "inner_headers.h"

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_neon-inl.h"
#include "pairs-inl.h"
#include "bytes_neon-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kNeonKernels = make_kernels("neon");

}  // namespace pybeam

#endif  // __aarch64__
