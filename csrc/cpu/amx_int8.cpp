// The inner kernels for AVX-512 (F, DQ, BW, VL) with VNNI and BF16, and AMX's tiles for int8.
#include "../dispatch.h"

#ifdef PYBEAM_HAS_TILES

#include <immintrin.h>

#include "inner_headers.h"

PYBEAM_TARGET(
    "amx-tile,amx-int8,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_avx512-inl.h"
#include "pairs_avx512_bf16-inl.h"
#include "bytes_avx512_vnni-inl.h"
#include "kernels-inl.h"
#include "tiles_amx-inl.h"
// clang-format on

constexpr Kernels make_tile_kernels() {
    Kernels kernels = make_kernels("amx_int8");
    kernels.multiply_rows[static_cast<int>(WeightType::kInt8)] = &multiply_rows_in_tiles;
    return kernels;
}

}  // namespace

extern const Kernels kAmxInt8Kernels = make_tile_kernels();

}  // namespace pybeam

PYBEAM_END_OF_TARGET

#endif  // PYBEAM_HAS_TILES
