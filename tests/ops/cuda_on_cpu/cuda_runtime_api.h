// Stands in for the CUDA header of this name, so that a C++ compiler builds the kernels as they are
// and a CPU runs them: blocks one after another, a fiber per thread.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "intrinsics.h"

namespace cuda_on_cpu {

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = 1 << 17;

// Threads that wait for each other; every one leaves a value and sees those of all.
struct Meeting {
    int expected = 0, arrived = 0;
    unsigned generation = 0;
    std::vector<uint64_t> value[2];  // a thread may be one meeting ahead of the others

    void reset(int num_threads) {
        expected = num_threads;
        arrived = 0;
        for (auto& values : value) values.assign(num_threads, 0);
    }
};

struct Fiber {
    std::vector<char> stack = std::vector<char>(kStackBytes);
    ucontext_t start;
    jmp_buf state;
    bool has_started, is_done;
};

struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Meeting> warps;
    Meeting block;
    std::function<void()> kernel;
    jmp_buf scheduler;
    ucontext_t first;
    int current = 0;
    uint64_t progress = 0;
};

inline Machine machine;
inline bool runs_backwards = false;  // the order of blocks and of threads, which must not matter
inline int64_t num_blocks = 0;       // of the last launch

struct Index {
    unsigned x;
};

}  // namespace cuda_on_cpu

inline cuda_on_cpu::Index threadIdx, blockIdx;

namespace cuda_on_cpu {

[[gnu::noinline]] inline void pause() {
    if (_setjmp(machine.fibers[machine.current].state) == 0) _longjmp(machine.scheduler, 1);
}

inline const std::vector<uint64_t>& meet(Meeting& meeting, int place, uint64_t value) {
    const unsigned generation = meeting.generation;
    auto& values = meeting.value[generation % 2];
    values[place] = value;
    if (++meeting.arrived == meeting.expected) {
        meeting.arrived = 0;
        ++meeting.generation;
        ++machine.progress;
    }
    while (meeting.generation == generation) pause();
    return values;
}

inline int meet_block(bool flag) {
    int count = 0;
    for (uint64_t value : meet(machine.block, threadIdx.x, flag)) count += value != 0;
    return count;
}

inline const std::vector<uint64_t>& meet_warp(uint64_t value) {
    return meet(machine.warps[threadIdx.x / kWarpSize], threadIdx.x % kWarpSize, value);
}

inline void run_fiber() {
    machine.kernel();
    machine.fibers[machine.current].is_done = true;
    ++machine.progress;
    _longjmp(machine.scheduler, 1);
}

inline void resume(int thread) {
    Fiber& fiber = machine.fibers[thread];
    machine.current = thread;
    threadIdx.x = thread;
    if (_setjmp(machine.scheduler) != 0) return;
    if (fiber.has_started) _longjmp(fiber.state, 1);
    fiber.has_started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = fiber.stack.size();
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, run_fiber, 0);
    setcontext(&fiber.start);
}

inline void run_block(int num_threads) {
    machine.fibers.resize(num_threads);
    machine.warps.resize(num_threads / kWarpSize);
    machine.block.reset(num_threads);
    for (Meeting& warp : machine.warps) warp.reset(kWarpSize);
    for (Fiber& fiber : machine.fibers) fiber.has_started = fiber.is_done = false;
    for (volatile bool is_live = true; is_live;) {
        const uint64_t progress = machine.progress;
        is_live = false;
        for (volatile int i = 0; i < num_threads; i = i + 1) {
            const int thread = runs_backwards ? num_threads - 1 - i : i;
            if (machine.fibers[thread].is_done) continue;
            is_live = true;
            resume(thread);
        }
        if (is_live && machine.progress == progress) {
            std::fprintf(stderr, "the threads of block %u wait for ever\n", blockIdx.x);
            std::abort();
        }
    }
}

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::meet_block(false); }
inline int __syncthreads_count(bool flag) { return cuda_on_cpu::meet_block(flag); }
inline int __syncthreads_or(bool flag) { return cuda_on_cpu::meet_block(flag) != 0; }

template <class T>
T __shfl_xor_sync(unsigned, T x, int step) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    bits = cuda_on_cpu::meet_warp(bits)[(threadIdx.x % cuda_on_cpu::kWarpSize) ^ step];
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline unsigned __ballot_sync(unsigned, bool flag) {
    unsigned ballot = 0;
    const auto& flags = cuda_on_cpu::meet_warp(flag);
    for (int lane = 0; lane < cuda_on_cpu::kWarpSize; ++lane)
        ballot |= unsigned(flags[lane]) << lane;
    return ballot;
}

namespace pybeam::cuda {

inline uint32_t count_arrival(uint32_t* address, uint32_t last) {
    const uint32_t old = *address;
    *address = old >= last ? 0 : old + 1;
    return old;
}

template <class Params>
cudaError_t launch(void (*kernel)(Params), int64_t num_blocks, int num_threads, cudaStream_t,
                   const Params& params) {
    cuda_on_cpu::machine.kernel = [&] { kernel(params); };
    cuda_on_cpu::num_blocks = num_blocks;
    for (int64_t i = 0; i < num_blocks; ++i) {
        const bool backwards = cuda_on_cpu::runs_backwards;
        blockIdx.x = static_cast<unsigned>(backwards ? num_blocks - 1 - i : i);
        cuda_on_cpu::run_block(num_threads);
    }
    return cudaSuccess;
}

}  // namespace pybeam::cuda
