// The inner kernels for AVX-512 (F, DQ, BW, VL).
#ifdef __x86_64__

#include <immintrin.h>

#include "inner_headers.h"

PYBEAM_TARGET("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_avx512-inl.h"
#include "pairs-inl.h"
#include "bytes_avx512-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kAvx512Kernels = make_kernels("avx512");

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // __x86_64__
