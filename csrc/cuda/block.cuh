// Functions that the threads of a block compute together. Every thread of the block must call them.
#pragma once

#include <cstdint>

#include "logits.cuh"
#include "params.cuh"

namespace pybeam::cuda {

constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
    template <class T>
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
};

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Min {
    __device__ int operator()(int a, int b) const { return min(a, b); }
};

// A number of each warp, in shared memory.
union WarpNumbers {
    int ints[kWarps];
    float floats[kWarps];

    __device__ int* of(int) { return ints; }
    __device__ float* of(float) { return floats; }
};

// Combines the numbers in the same order every time.
template <class T, class Op>
__device__ T block_reduce(T x, Op op, WarpNumbers& numbers) {
    T* partial = numbers.of(x);
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
        x = op(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    if (threadIdx.x % kWarpSize == 0) partial[known_now(threadIdx.x / kWarpSize)] = x;
    __syncthreads();
    x = partial[0];
    for (int warp = 1; warp < kWarps; ++warp) x = op(x, partial[warp]);
    __syncthreads();
    return x;
}

// How many threads before this one hold a flag, and how many in all.
struct Rank {
    int before;
    int total;
};

// The ranks of two flags, for the barriers of one: both counts of a warp share a number.
struct Ranks {
    Rank first, second;
};

__device__ inline Ranks block_ranks(bool first, bool second, WarpNumbers& numbers) {
    static_assert(kThreads < 1 << 16);
    int* count = numbers.ints;
    // not kept in a register from one call to the next
    const int lane = threadIdx.x % kWarpSize, own_warp = known_now(threadIdx.x / kWarpSize);
    const unsigned before = (1u << lane) - 1;
    const unsigned firsts = __ballot_sync(kAllLanes, first);
    const unsigned seconds = __ballot_sync(kAllLanes, second);
    if (lane == 0) count[own_warp] = __popc(firsts) | __popc(seconds) << 16;
    __syncthreads();
    int num_before = __popc(firsts & before) | __popc(seconds & before) << 16, total = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
        if (warp < own_warp) num_before += count[warp];
        total += count[warp];
    }
    __syncthreads();
    return {{num_before & 0xffff, total & 0xffff}, {num_before >> 16, total >> 16}};
}

__device__ inline Rank block_rank(bool flag, WarpNumbers& numbers) {
    return block_ranks(flag, false, numbers).first;
}

// Calls use(i, load(i)) for every i below `number`, with several loads of a thread on their way.
template <class Load, class Use>
__device__ void for_each_loaded(int number, Load load, Use use) {
    constexpr int kAtOnce = 2;
#pragma unroll 1
    for (int first = threadIdx.x; first < number; first += kAtOnce * kThreads) {
        decltype(load(0)) loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (first + i * kThreads < number) loaded[i] = load(first + i * kThreads);
        }
        // one copy of the code, because the first block to come here waits for its instructions
#pragma unroll 1
        for (int i = first; i < min(first + kAtOnce * kThreads, number); i += kThreads) {
            use(i, loaded[0]);
#pragma unroll
            for (int j = 1; j < kAtOnce; ++j) loaded[j - 1] = loaded[j];
        }
    }
}

// Whether this block is the last of `expected` to arrive; then it sees what the others wrote
// before, and has reset the counter. The first warp calls `leave` when all threads of the block
// have come so far; only its first thread may write.
template <class Leave>
__device__ bool is_last_to_arrive(uint32_t* counter, uint32_t expected, Leave leave) {
    __syncthreads();
    bool is_last = false;
    if (threadIdx.x < kWarpSize) leave();
    if (threadIdx.x == 0) is_last = count_arrival(counter, expected - 1) == expected - 1;
    return __syncthreads_or(is_last);
}

}  // namespace pybeam::cuda
