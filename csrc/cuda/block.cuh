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

// Combines the numbers in the same order every time.
template <class T, class Op>
__device__ T block_reduce(T x, Op op) {
    __shared__ T partial[kWarps];
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
        x = op(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = x;
    __syncthreads();
    x = partial[0];
    for (int warp = 1; warp < kWarps; ++warp) x = op(x, partial[warp]);
    __syncthreads();
    return x;
}

// How many threads before this one hold `flag`, and how many in all.
struct Rank {
    int before;
    int total;
};

__device__ inline Rank block_rank(bool flag) {
    __shared__ int count[kWarps];
    const int lane = threadIdx.x % kWarpSize, own_warp = threadIdx.x / kWarpSize;
    const unsigned ballot = __ballot_sync(kAllLanes, flag);
    if (lane == 0) count[own_warp] = __popc(ballot);
    __syncthreads();
    Rank rank{__popc(ballot & ((1u << lane) - 1)), 0};
    for (int warp = 0; warp < kWarps; ++warp) {
        if (warp < own_warp) rank.before += count[warp];
        rank.total += count[warp];
    }
    __syncthreads();
    return rank;
}

// The largest finite number that at least `wanted` of the threads' numbers reach, rounded down to
// bfloat16. If fewer than `wanted` are not -inf, all of those reach it.
__device__ inline float block_bound(float number, int wanted) {
    const uint32_t upper = ordered_bits(number) >> 16;
    uint32_t bound = 0;
#pragma unroll 1
    for (uint32_t bit = 0x8000u; bit != 0; bit >>= 1) {
        if (__syncthreads_count(upper >= (bound | bit)) >= wanted) bound |= bit;
    }
    const uint32_t least = 0x0080u;  // of a finite number
    return float_from_ordered(max(bound, least) << 16);
}

// Whether this block is the last of `expected` to arrive; then it sees what the others wrote
// before.
__device__ inline bool is_last_to_arrive(uint32_t* counter, uint32_t expected) {
    __syncthreads();
    bool is_last = false;
    if (threadIdx.x == 0) {
        __threadfence();
        // the last block to arrive resets the counter for the next launch
        is_last = atomicInc(counter, expected - 1) == expected - 1;
        __threadfence();
    }
    return __syncthreads_or(is_last);
}

}  // namespace pybeam::cuda
