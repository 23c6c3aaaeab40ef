#include <algorithm>

#include "../dispatch.h"
#include "../params.h"
#include "parallel.h"

namespace pybeam {
namespace {

constexpr int64_t kTaskRows = 32;

}  // namespace

void launch_layer_norm(const LayerNormParams& params) {
    const int64_t tasks = (params.num_rows + kTaskRows - 1) / kTaskRows;
    const NormaliseRow normalise_row = kernels().normalise_row;
    parallel_for(threads_for(params.num_rows * params.size, tasks, params.num_threads), tasks,
                 [&](int64_t task) {
                     const int64_t end = std::min(params.num_rows, (task + 1) * kTaskRows);
                     for (int64_t row = task * kTaskRows; row < end; ++row) {
                         normalise_row(params, row);
                     }
                 });
}

}  // namespace pybeam
