// The inner kernels for AVX-512 (F, DQ, BW, VL) with BF16.
#ifdef __x86_64__

#include <immintrin.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../dispatch.h"
#include "../params/gates.h"
#include "../params/layer_norm.h"
#include "../params/linear.h"
#include "../params/mixture.h"
#include "../params/tree_attention.h"
#include "numbers.h"
#include "select.h"

// after the headers: no inline function that other files share may get these instructions
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c")

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_avx512-inl.h"
#include "exp-inl.h"
#include "activations-inl.h"
#include "columns-inl.h"
#include "gates-inl.h"
#include "select-inl.h"
#include "row_blocks-inl.h"
#include "tree_attention-inl.h"
#include "pairs_avx512_bf16-inl.h"
#include "linear-inl.h"
#include "layer_norm-inl.h"
#include "log-inl.h"
#include "mixture-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kAvx512Bf16Kernels = make_kernels("avx512_bf16");

}  // namespace pybeam

#endif  // __x86_64__
