// Tree attention, split into tasks that may run in any order.
#pragma once

#include <vector>

#include "../counters.h"
#include "../params/tree_attention.h"

namespace pybeam {

// Raises std::runtime_error if a value that serves as an address is wrong.
void check_addresses(const TreeAttentionParams& params);

// Makes zeros of rows behind the last offset, which attention leaves as they are.
void clear_padding(const TreeAttentionParams& params);

// Each cell is read once for the rows of its source. The addresses have been checked.
KernelWork kernel_work(const TreeAttentionParams& params);

// The addresses have been checked.
class AttentionTasks {
  public:
    AttentionTasks(const TreeAttentionParams& params, int num_threads);
    AttentionTasks(const AttentionTasks&) = delete;

    int64_t size() const { return params_.num_sources * head_tasks_ * blocks_; }
    // Multiply-adds.
    int64_t work() const { return work_; }
    void run(int64_t task) const;

  private:
    TreeAttentionParams params_;
    int num_threads_;
    std::vector<int64_t> trunk_;  // by source
    int64_t work_ = 0;
    int64_t blocks_, heads_, head_tasks_, scratch_size_;
};

}  // namespace pybeam
