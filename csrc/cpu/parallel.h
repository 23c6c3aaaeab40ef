// Runs independent tasks on torch's OpenMP threads, or on one thread if the compiler has no OpenMP.
#pragma once

#include <cstdint>

namespace pybeam {

// Less work than this many multiply-adds stays on one thread. A thread does as many in the
// microseconds that OpenMP needs to wake a second one and to wait for it.
constexpr int64_t kWorthThreads = 32768;

inline int threads_for(int64_t work, int64_t num_tasks, int num_threads) {
    if (work < kWorthThreads || num_tasks < 2) return 1;
    return num_tasks < num_threads ? static_cast<int>(num_tasks) : num_threads;
}

// Calls task(i) for i < num_tasks. Tasks may not throw.
template <class Task>
void parallel_for(int num_threads, int64_t num_tasks, const Task& task) {
    if (num_threads <= 1) {
        for (int64_t i = 0; i < num_tasks; ++i) task(i);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
#endif
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
}

// Calls body(row) for every row, where one costs as much as `row_work` multiply-adds.
template <class Body>
void for_rows(int64_t num_rows, int64_t row_work, int num_threads, const Body& body) {
    // few rows per task, so that threads can share a batch of 64 rows; a task costs one atomic add
    constexpr int64_t kBlock = 32;
    const int64_t tasks = (num_rows + kBlock - 1) / kBlock;
    parallel_for(threads_for(num_rows * row_work, tasks, num_threads), tasks, [&](int64_t task) {
        const int64_t end = num_rows < (task + 1) * kBlock ? num_rows : (task + 1) * kBlock;
        for (int64_t row = task * kBlock; row < end; ++row) body(row);
    });
}

}  // namespace pybeam
