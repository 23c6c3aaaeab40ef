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

// Lives in shared memory.
struct Candidates {
    Key key[kRoom];
    Key best[kThreads];
    int count;  // of keys; more than kRoom say that some were lost

    __device__ void add(const Key& own) {
        const int place = atomicAdd(&count, 1);
        if (place < kRoom) key[place] = own;
    }
};

__device__ inline int num_better_of_parent(const Candidates& list, int count, const Key& own) {
    int number = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
        const Key other = list.key[i];
        number += other.parent() == own.parent() && other.lower > own.lower;
    }
    return number;
}

// Removes all candidates of a parent but its `limit` best ones.
__device__ inline void limit_parents(Candidates& list, int count, int limit) {
    unsigned beyond = 0;  // bits of this thread's candidates
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
        const bool is_beyond = num_better_of_parent(list, count, list.key[i]) >= limit;
        beyond |= unsigned{is_beyond} << i / kThreads;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
        if (beyond >> i / kThreads & 1) list.key[i].upper = 0;
    }
    __syncthreads();
}

// Puts the best `wanted` candidates, with `limit` of each parent at most, into `best`, in order.
// Returns how many there are. `wanted` is at most kThreads.
__device__ inline int rank(Candidates& list, int wanted, int limit) {
    __syncthreads();
    const int count = min(list.count, kRoom);
    if (limit < wanted) limit_parents(list, count, limit);
    int num_best = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        int place = kThreads;
        if (i < count && list.key[i].upper != 0) {
            const Key own = list.key[i];
            place = 0;
#pragma unroll 4
            for (int j = 0; j < count; ++j) place += list.key[j] > own;
            if (place < wanted) list.best[place] = own;
        }
        num_best += __syncthreads_count(place < wanted);
    }
    return num_best;
}

}  // namespace pybeam::cuda
