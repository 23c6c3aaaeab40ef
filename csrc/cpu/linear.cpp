#include "linear.h"

#include <algorithm>

#include "../dispatch.h"
#include "../scratch.h"
#include "pair_kernels.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Most rows of one task. With more rows the weights are read less often. With fewer, the inputs
// stay in the second-level cache: 384 rows of 512 float32 inputs are 768 kB.
constexpr int64_t kMostRows = 384;
// Rows are split until there are this many tasks per thread. More tasks share the work more evenly,
// but every task reads its panel anew.
constexpr int64_t kTasksPerThread = 4;
// Neighbouring panels are one task where there are more tasks per thread than this: memory is read
// best without a break.
constexpr int64_t kManyTasks = 16, kMostPanels = 8;
// Fewest rows of one task if rows are split: with fewer, reading the panel again costs too much.
constexpr int64_t kLeastRows = 8;

// Memory for prepared rows, valid until this thread's next call.
void set_memory(LinearParams* params) {
    static thread_local Scratch<int8_t> values;
    static thread_local Scratch<float> scales;
    static thread_local Scratch<int32_t> offsets;
    static thread_local Scratch<LargeInput> large;
    const int64_t rows = params->num_rows;
    const int64_t stride = prepared_stride(params->weight_type, params->depth);
    const int64_t num = num_offsets(params->weight_type, params->depth);
    int8_t* rounded = values.room(rows * stride);
    params->rounded_x = rounded;
    params->int8_x = {rounded, stride, scales.room(rows), offsets.room(rows * num), num};
    if (params->keeps_large) params->int8_x.large = large.room(rows * kNumLarge);
}

}  // namespace

int64_t prepared_stride(WeightType type, int64_t depth) {
    if (type == WeightType::kBFloat16) return (depth + 1) / 2 * pair_kernels().rounded_pair_bytes;
    if (!is_integer(type)) return 0;
    const int64_t together = type == WeightType::kInt4 ? kGroup : 4;
    return (depth + together - 1) / together * together * kernels().int8_input_bytes;
}

KernelWork kernel_work(const LinearParams& p) {
    const int64_t weights = p.num_columns * p.depth;
    int64_t bytes = 2 * weights;
    if (p.weight_type == WeightType::kFloat32) bytes = 4 * weights;
    if (p.weight_type == WeightType::kInt8) bytes = weights;
    if (p.weight_type == WeightType::kInt4) bytes = weights / kGroup * kGroupBytes;
    const int64_t numbers = p.depth + (p.adds ? 2 : 1) * p.num_columns;
    return {bytes + 4 * p.num_rows * numbers, 2 * p.num_rows * weights};
}

int64_t num_offsets(WeightType type, int64_t depth) {
    return type == WeightType::kInt4 ? (depth + kGroup - 1) / kGroup : 1;
}

LinearTasks::LinearTasks(const LinearParams& params, int num_threads)
    : params_(params),
      panels_((params.num_columns + kPanel - 1) / kPanel),
      panels_of_task_(std::clamp<int64_t>(panels_ / (kManyTasks * num_threads), 1, kMostPanels)),
      parts_((panels_ + panels_of_task_ - 1) / panels_of_task_),
      groups_((params.num_rows + kMostRows - 1) / kMostRows) {
    params_.panels_of_task = panels_of_task_;
    // two threads that share a panel both read it
    while (groups_ > 0 && size() % num_threads != 0 && size() < kTasksPerThread * num_threads &&
           params.num_rows / groups_ > 2 * kLeastRows) {
        groups_ *= 2;
    }
}

bool LinearTasks::prepares() const {
    return prepared_stride(params_.weight_type, params_.depth) != 0;
}

void LinearTasks::prepare(int64_t row) const {
    const float* x = params_.x + row * params_.x_stride;
    if (is_integer(params_.weight_type)) {
        kernels().quantise_row(x, params_.depth, params_.int8_x.from(row));
    } else if (params_.weight_type == WeightType::kBFloat16) {
        const int64_t stride = prepared_stride(params_.weight_type, params_.depth);
        char* rounded = static_cast<char*>(params_.rounded_x) + row * stride;
        pair_kernels().round_row(x, params_.depth, rounded);
    }
}

void LinearTasks::run(int64_t task) const {
    const int64_t group = task / parts_, first = task % parts_ * panels_of_task_;
    const int64_t rows = params_.num_rows;
    const bool has_pairs = params_.weight_type == WeightType::kBFloat16;
    const Kernels& kernels = has_pairs ? pair_kernels() : pybeam::kernels();
    const MultiplyRows multiply = kernels.multiply_rows[static_cast<int>(params_.weight_type)];
    for (int64_t panel = first; panel < std::min(first + panels_of_task_, panels_); ++panel) {
        multiply(params_, panel, rows * group / groups_, rows * (group + 1) / groups_);
    }
}

void launch_linear(LinearParams params) {
    const Counted counted(Kernel::kProduct, [&] { return kernel_work(params); });
    set_memory(&params);
    const LinearTasks tasks(params, params.num_threads);
    if (tasks.prepares()) {
        for_rows(params.num_rows, params.depth, params.num_threads,
                 [&](int64_t row) { tasks.prepare(row); });
    }
    const int num_threads = threads_for(tasks.work(), tasks.size(), params.num_threads);
    parallel_for(num_threads, tasks.size(), [&](int64_t task) { tasks.run(task); });
}

}  // namespace pybeam
