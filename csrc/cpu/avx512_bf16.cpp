// The inner kernels for AVX-512 (F, DQ, BW, VL) with VNNI and BF16.
#ifdef __x86_64__

#include <immintrin.h>

#include "inner_headers.h"

PYBEAM_TARGET("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_avx512-inl.h"
#include "pairs_avx512_bf16-inl.h"
#include "bytes_avx512_vnni-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kAvx512Bf16Kernels = make_kernels("avx512_bf16");

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // __x86_64__
