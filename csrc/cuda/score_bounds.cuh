// A score that the best candidates of a beam reach, from the largest scores of some groups.
#pragma once

#include <cstdint>

#include "block.cuh"

namespace pybeam::cuda {

// Each holds the largest score of some groups of a row, so that all of them stand for different
// candidates, and no row has more of them than it may have candidates.
constexpr int kBins = 2 * kThreads;

// How many numbers of a bin are compared with a bound: one for each thread, or two.
__device__ inline int bins_in_use(int wanted) { return 4 * wanted <= kThreads ? kThreads : kBins; }

// More bins than so many take longer to be compared with one another than a bound to be searched
// for.
constexpr int kFewBins = 64;
// The search leaves out the bits below, 2^-11 of a number: what is a little less is a bound, too.
constexpr int kLastBit = 12;

// The largest number that `wanted` of the bins reach, but for its last bits; 0: there are fewer.
// Its code stands beside that of narrow beams, which do not run it.
[[gnu::noinline]] __device__ inline uint32_t searched_bound(const uint32_t* bin, int num_bins,
                                                            int wanted) {
    const bool has_two = num_bins > kThreads;
    const uint32_t first = bin[threadIdx.x], second = has_two ? bin[kThreads + threadIdx.x] : 0;
    uint32_t found = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit >= 1u << kLastBit; bit >>= 1) {
        int num_reaching = __syncthreads_count(first >= (found | bit));
        if (has_two) num_reaching += __syncthreads_count(second >= (found | bit));
        if (num_reaching >= wanted) found |= bit;
    }
    return found;
}

// The same, with all bits. Each bin is compared with the first ones, and the others are 0. `least`
// is 2^32 - 1 before.
__device__ inline uint32_t compared_bound(const uint32_t* bin, int num_bins, int num_used,
                                          int wanted, uint32_t& least) {
#pragma unroll 1
    for (int i = threadIdx.x; i < num_bins; i += kThreads) {
        const uint32_t own = bin[i];
        int num_above = 0;
#pragma unroll 1
        for (int j = 0; j < num_used; j += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(bin + j);
            num_above += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
        }
        if (num_above < wanted) atomicMin(&least, own);
    }
    __syncthreads();
    return least;
}

// A finite number that at least `wanted` of the bins reach, and few others; the least finite number
// if fewer do. Others than the first `num_used` bins are 0. `least` is 2^32 - 1 before.
__device__ inline float bin_bound(const uint32_t* bin, int num_bins, int num_used, int wanted,
                                  uint32_t& least) {
    uint32_t bound;
    if (num_used > kFewBins) {
        bound = searched_bound(bin, num_bins, wanted);
    } else {
        bound = compared_bound(bin, num_bins, num_used, wanted, least);
    }
    constexpr uint32_t kLeastOrdered = 0x00800000u;  // of a finite number
    return float_from_ordered(max(bound, kLeastOrdered));
}

}  // namespace pybeam::cuda
