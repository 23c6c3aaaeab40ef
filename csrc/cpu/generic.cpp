// The inner kernels for any CPU.
#include "inner_headers.h"

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_generic-inl.h"
#include "pairs-inl.h"
#include "bytes_generic-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kGenericKernels = make_kernels("generic");

}  // namespace pybeam
