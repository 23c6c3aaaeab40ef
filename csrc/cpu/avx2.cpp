// The inner kernels for AVX2 with FMA and F16C.
#ifdef __x86_64__

#include <immintrin.h>

#include "inner_headers.h"

PYBEAM_TARGET("avx2,fma,f16c")

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_avx2-inl.h"
#include "pairs-inl.h"
#include "bytes_avx2-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kAvx2Kernels = make_kernels("avx2");

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // __x86_64__
