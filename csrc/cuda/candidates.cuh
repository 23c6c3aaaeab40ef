// The candidates of a beam in shared memory, and the best of them in order.
#pragma once

#include <cstdint>

#include "block.cuh"

namespace pybeam::cuda {

// A larger key is a better candidate: by score, then parent, then logit, then token.
struct alignas(16) Key {
    uint64_t upper;  // the score, and the complement of the parent; 0: there is none
    uint64_t lower;  // the logit, and the complement of the token

    __device__ static Key of(float score, int parent, float logit, int32_t token) {
        return {pair(score, parent), pair(logit, token)};
    }

    __device__ float score() const { return value(upper); }
    __device__ int parent() const { return index(upper); }
    __device__ float logit() const { return value(lower); }
    __device__ int32_t token() const { return index(lower); }

    __device__ bool operator>(const Key& other) const {
        return upper > other.upper || (upper == other.upper && lower > other.lower);
    }

  private:
    __device__ static uint64_t pair(float value, int32_t index) {
        return uint64_t{ordered_bits(value)} << 32 | ~static_cast<uint32_t>(index);
    }
    __device__ static float value(uint64_t pair) {
        return float_from_ordered(static_cast<uint32_t>(pair >> 32));
    }
    __device__ static int32_t index(uint64_t pair) {
        return static_cast<int32_t>(~static_cast<uint32_t>(pair));
    }
};

constexpr int kRoom = 1024;

struct Group {
    int entry;
    int number;  // among those of all slices of a row
};

// Lives in shared memory.
struct Candidates {
    Key key[kRoom];
    union {
        Group group[kRoom];  // of which keys are made
        Key best[kThreads];  // of them
    };
    int count;  // of keys; more than kRoom say that some were lost
    int num_groups;

    __device__ void add(const Key& own) {
        const int place = atomicAdd(&count, 1);
        if (place < kRoom) key[place] = own;
    }
};

// Each candidate is compared with the others by so many threads.
constexpr int kComparing = 8;

// How many candidates come before the one at `i`.
template <class Before>
__device__ int num_before(const Candidates& list, int count, int i, Before before) {
    const Key own = i < count ? list.key[i] : Key{0, 0};
    int number = 0;
#pragma unroll 1
    for (int j = threadIdx.x % kComparing; j < count; j += kComparing) {
        number += before(list.key[j], own);
    }
    for (int step = kComparing / 2; step > 0; step /= 2) {
        number += __shfl_xor_sync(kAllLanes, number, step);
    }
    return number;
}

// Removes all candidates of a parent but its `limit` best ones.
__device__ inline void limit_parents(Candidates& list, int count, int limit) {
    static_assert(kRoom * kComparing / kThreads <= 32);
    unsigned beyond = 0;  // bits of this thread's candidates
    const int begin = threadIdx.x / kComparing, step = kThreads / kComparing;
    const auto is_better = [](const Key& other, const Key& own) {
        return other.parent() == own.parent() && other.lower > own.lower;
    };
#pragma unroll 1
    for (int first = 0; first < count; first += step) {
        const int number = num_before(list, count, first + begin, is_better);
        beyond |= unsigned{number >= limit} << first / step;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = begin; i < count; i += step, beyond >>= 1) {
        if (threadIdx.x % kComparing == 0 && (beyond & 1)) list.key[i].upper = 0;
    }
    __syncthreads();
}

// Puts the best `wanted` candidates, with `limit` of each parent at most, into `best`, in order.
// Returns how many there are. `wanted` is at most kThreads.
__device__ inline int rank(Candidates& list, int wanted, int limit) {
    list.best[threadIdx.x].upper = 0;
    __syncthreads();
    const int count = min(list.count, kRoom);
    if (limit < wanted) limit_parents(list, count, limit);
    const int begin = threadIdx.x / kComparing, step = kThreads / kComparing;
    const auto is_better = [](const Key& other, const Key& own) { return other > own; };
#pragma unroll 1
    for (int first = 0; first < count; first += step) {
        const int i = first + begin, place = num_before(list, count, i, is_better);
        const bool is_one = threadIdx.x % kComparing == 0 && i < count && place < wanted;
        if (is_one && list.key[i].upper != 0) list.best[place] = list.key[i];
    }
    __syncthreads();
    return __syncthreads_count(list.best[threadIdx.x].upper != 0);
}

}  // namespace pybeam::cuda
