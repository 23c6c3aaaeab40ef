// Loops over independent tasks on torch's OpenMP threads.
#pragma once

#include <cstdint>

namespace pybeam {

// Waking a second thread costs more than this many multiply-adds.
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
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
}

}  // namespace pybeam
