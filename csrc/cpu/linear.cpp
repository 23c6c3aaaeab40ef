#include "../params/linear.h"

#include <algorithm>
#include <vector>

#include "../dispatch.h"
#include "numbers.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Most rows of one task. With more rows the weights are read less often. With fewer, the inputs
// stay in the second-level cache: 384 rows of 512 float32 inputs are 768 kB.
constexpr int64_t kMostRows = 384;
// Rows are split until there are this many tasks per thread. More tasks share the work more evenly,
// but every task reads its panel anew.
constexpr int64_t kTasksPerThread = 4;
// Fewest rows of one task if rows are split: with fewer, reading the panel again costs too much.
constexpr int64_t kLeastRows = 8;
// Numbers that one task rounds: enough to be worth waking a thread (see `kWorthThreads`).
constexpr int64_t kRoundTask = 65536;

// x in bfloat16, valid until this thread's next call.
const void* round_inputs(const LinearParams& params) {
    static thread_local std::vector<char> memory;
    const int64_t row_bytes = (params.depth + 1) / 2 * kernels().rounded_pair_bytes;
    const int64_t size = params.num_rows * params.depth;
    if (static_cast<int64_t>(memory.size()) < params.num_rows * row_bytes) {
        memory.resize(params.num_rows * row_bytes);
    }
    char* rounded = memory.data();  // other threads have a `memory` of their own
    const int64_t tasks = std::clamp<int64_t>(size / kRoundTask, 1, params.num_rows);
    const RoundRow round_row = kernels().round_row;
    parallel_for(threads_for(size, tasks, params.num_threads), tasks, [&](int64_t task) {
        const int64_t end = params.num_rows * (task + 1) / tasks;
        for (int64_t row = params.num_rows * task / tasks; row < end; ++row) {
            round_row(params.x + row * params.x_stride, params.depth, rounded + row * row_bytes);
        }
    });
    return rounded;
}

// x in int8, valid until this thread's next call.
Int8Rows quantise_inputs(const LinearParams& params) {
    static thread_local std::vector<int8_t> values;
    static thread_local std::vector<float> scales;
    static thread_local std::vector<int32_t> offsets;
    const int64_t stride = (params.depth + 3) / 4 * 4;
    if (static_cast<int64_t>(values.size()) < params.num_rows * stride) {
        values.resize(params.num_rows * stride);
    }
    if (static_cast<int64_t>(scales.size()) < params.num_rows) {
        scales.resize(params.num_rows);
        offsets.resize(params.num_rows);
    }
    const Int8Rows rows{values.data(), stride, scales.data(), offsets.data()};
    const QuantiseRow quantise_row = kernels().quantise_row;
    for_rows(params.num_rows, params.depth, params.num_threads, [&](int64_t row) {
        quantise_row(params.x + row * params.x_stride, params.depth, rows.row(row));
    });
    return rows;
}

}  // namespace

void launch_linear(LinearParams params) {
    const int64_t panels = (params.num_columns + kPanel - 1) / kPanel;
    if (params.num_rows == 0 || panels == 0) return;
    if (params.weight_type == WeightType::kBFloat16) params.rounded_x = round_inputs(params);
    if (params.weight_type == WeightType::kInt8) params.int8_x = quantise_inputs(params);
    int64_t groups = (params.num_rows + kMostRows - 1) / kMostRows;
    // two threads that share a panel both read it
    while (panels * groups % params.num_threads != 0 &&
           panels * groups < kTasksPerThread * params.num_threads &&
           params.num_rows / groups > 2 * kLeastRows) {
        groups *= 2;
    }
    const int64_t work = params.num_rows * params.num_columns * params.depth;
    const int num_threads = threads_for(work, panels * groups, params.num_threads);
    const MultiplyRows multiply_rows =
        kernels().multiply_rows[static_cast<int>(params.weight_type)];
    parallel_for(num_threads, panels * groups, [&](int64_t task) {
        const int64_t group = task / panels;
        multiply_rows(params, task % panels, params.num_rows * group / groups,
                      params.num_rows * (group + 1) / groups);
    });
}

}  // namespace pybeam
