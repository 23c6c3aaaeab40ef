#include "../params/layer_norm.h"

#include "../counters.h"
#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {

void launch_layer_norm(const LayerNormParams& params) {
    const Counted counted(Kernel::kNorm,
                          [&] { return KernelWork{4 * 2 * params.num_rows * params.size, 0}; });
    const NormaliseRow normalise_row = kernels().normalise_row;
    for_rows(params.num_rows, params.size, params.num_threads,
             [&](int64_t row) { normalise_row(params, row); });
}

}  // namespace pybeam
