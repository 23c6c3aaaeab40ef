#include "../params/layer_norm.h"

#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {

void launch_layer_norm(const LayerNormParams& params) {
    const NormaliseRow normalise_row = kernels().normalise_row;
    for_rows(params.num_rows, params.size, params.num_threads,
             [&](int64_t row) { normalise_row(params, row); });
}

}  // namespace pybeam
