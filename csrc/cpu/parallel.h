// Runs independent tasks on torch's threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "../threads.h"

namespace pybeam {

// Less work than this many multiply-adds stays on one thread. A thread does as many in the
// microseconds that it takes to wake a second one and to wait for it.
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
    struct Shared {
        const Task& task;
        int64_t num_tasks;
        std::atomic<int64_t> next{0};
    } shared{task, num_tasks};
    // each thread takes the next task, so that none waits for a slow one
    const auto work = [](int64_t, int64_t, void* context) {
        auto& own = *static_cast<Shared*>(context);
        for (int64_t i = own.next++; i < own.num_tasks; i = own.next++) own.task(i);
    };
    run_on_threads(num_threads, work, &shared);
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
