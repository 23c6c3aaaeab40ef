#include <algorithm>

#include "../dispatch.h"
#include "../params.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Rows of one task: their inputs stay in the second cache while panel after panel passes.
constexpr int64_t kTaskRows = 384;
// Tasks that share the work evenly among threads.
constexpr int64_t kEnoughTasks = 4;

}  // namespace

void launch_linear(const LinearParams& params) {
    const int64_t panels = (params.num_columns + kPanel - 1) / kPanel;
    if (params.num_rows == 0 || panels == 0) return;
    int64_t groups = (params.num_rows + kTaskRows - 1) / kTaskRows;
    // a panel that two threads share is read by both
    while (panels * groups % params.num_threads != 0 &&
           panels * groups < kEnoughTasks * params.num_threads && params.num_rows / groups > 16) {
        groups *= 2;
    }
    const int64_t work = params.num_rows * params.num_columns * params.depth;
    const int num_threads = threads_for(work, panels * groups, params.num_threads);
    const MultiplyRows multiply_rows =
        kernels().multiply_rows[static_cast<int>(params.weight_dtype)];
    parallel_for(num_threads, panels * groups, [&](int64_t task) {
        const int64_t group = task / panels;
        multiply_rows(params, task % panels, params.num_rows * group / groups,
                      params.num_rows * (group + 1) / groups);
    });
}

}  // namespace pybeam
