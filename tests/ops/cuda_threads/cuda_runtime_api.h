// Stands in for the CUDA header of this name, so that ThreadSanitizer sees the kernels: a thread of
// the CPU for each of a block. `__shared__` is static, so blocks that run at the same time need
// copies of this library. RELAXED_COUNTER and LOST_BARRIER are mistakes that it must find.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../cuda_on_cpu/intrinsics.h"

struct Index {
    unsigned x;
};

inline thread_local Index threadIdx, blockIdx;

namespace cuda_threads {

constexpr int kThreads = 256, kWarpSize = 32;

// Where the threads of a block wait for each other, and what they show each other there.
struct Block {
    std::barrier<> all{kThreads};
    std::unique_ptr<std::barrier<>> warp[kThreads / kWarpSize];
    std::atomic<int> count[2]{};
    std::atomic<uint64_t> value[kThreads];

    Block() {
        for (auto& barrier : warp) barrier = std::make_unique<std::barrier<>>(kWarpSize);
    }
};

inline Block* block = nullptr;
inline thread_local unsigned num_counts = 0, num_barriers = 0;

// The blocks that this copy runs: every `num_copies`-th, in an order that `seed` decides.
inline int copy = 0, num_copies = 1;
inline unsigned seed = 0;

inline void meet_warp() { block->warp[threadIdx.x / kWarpSize]->arrive_and_wait(); }

}  // namespace cuda_threads

inline void __syncthreads() {
#ifdef LOST_BARRIER
    if (++cuda_threads::num_barriers == LOST_BARRIER) return;
#endif
    cuda_threads::block->all.arrive_and_wait();
}

inline int __syncthreads_count(bool flag) {
    using namespace cuda_threads;
    auto& count = block->count[num_counts++ % 2];
    if (flag) count.fetch_add(1, std::memory_order_relaxed);
    block->all.arrive_and_wait();
    const int total = count.load(std::memory_order_relaxed);
    block->all.arrive_and_wait();
    if (threadIdx.x == 0) count.store(0, std::memory_order_relaxed);
    return total;
}

inline int __syncthreads_or(bool flag) { return __syncthreads_count(flag) != 0; }

template <class T>
T __shfl_xor_sync(unsigned, T x, int step) {
    using namespace cuda_threads;
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    block->value[threadIdx.x].store(bits, std::memory_order_relaxed);
    meet_warp();
    bits = block->value[threadIdx.x ^ step].load(std::memory_order_relaxed);
    meet_warp();
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline unsigned __ballot_sync(unsigned, bool flag) {
    using namespace cuda_threads;
    block->value[threadIdx.x].store(flag, std::memory_order_relaxed);
    meet_warp();
    unsigned ballot = 0;
    const unsigned first = threadIdx.x / kWarpSize * kWarpSize;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const uint64_t other = block->value[first + lane].load(std::memory_order_relaxed);
        ballot |= unsigned(other) << lane;
    }
    meet_warp();
    return ballot;
}

namespace pybeam::cuda {

inline uint32_t count_arrival(uint32_t* address, uint32_t last) {
#ifdef RELAXED_COUNTER
    constexpr int kOrder = __ATOMIC_RELAXED;
#else
    constexpr int kOrder = __ATOMIC_ACQ_REL;
#endif
    uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED), next;
    do next = old >= last ? 0 : old + 1;
    while (!__atomic_compare_exchange_n(address, &old, next, false, kOrder, __ATOMIC_RELAXED));
    return old;
}

template <class Params>
cudaError_t launch(void (*kernel)(Params), int64_t num_blocks, int num_threads, cudaStream_t,
                   const Params& params) {
    std::vector<unsigned> own;
    for (int64_t i = cuda_threads::copy; i < num_blocks; i += cuda_threads::num_copies)
        own.push_back(static_cast<unsigned>(i));
    std::shuffle(own.begin(), own.end(), std::mt19937(cuda_threads::seed + cuda_threads::copy));
    cuda_threads::Block block;
    cuda_threads::block = &block;
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t] {
            threadIdx.x = static_cast<unsigned>(t);
            for (const unsigned i : own) {
                blockIdx.x = i;
                kernel(params);
                block.all.arrive_and_wait();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return cudaSuccess;
}

}  // namespace pybeam::cuda
