// A product of rows with packed weights, split into tasks that may run in any order.
#pragma once

#include "../counters.h"
#include "../params/linear.h"

namespace pybeam {

// Bytes of one row as the product reads it: rounded to bfloat16 or int8; 0 for other weights.
int64_t prepared_stride(WeightType type, int64_t depth);
// Weights are read once, rows are read and written.
KernelWork kernel_work(const LinearParams& params);
// Offsets of one row of int8.
int64_t num_offsets(WeightType type, int64_t depth);

// First every row is prepared, then all tasks are run. The caller has set `rounded_x` or `int8_x`
// to memory of `prepared_stride` bytes a row, and scales and offsets.
class LinearTasks {
  public:
    LinearTasks(const LinearParams& params, int num_threads);

    int64_t size() const { return parts_ * groups_; }
    // Multiply-adds.
    int64_t work() const { return params_.num_rows * params_.num_columns * params_.depth; }
    bool prepares() const;
    void prepare(int64_t row) const;
    void run(int64_t task) const;

  private:
    LinearParams params_;
    int64_t panels_, panels_of_task_, parts_, groups_;
};

}  // namespace pybeam
