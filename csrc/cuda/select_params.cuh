// Reads the arguments and the scratch memory of `select`.
#pragma once

#include <cstdint>

#include "logits.cuh"
#include "params.cuh"

namespace pybeam::cuda {

// Scratch memory: totals [entries, slices], peak and log of the sum [entries], and the best keys
// [entries, slices, kMaxRowKeys], descending, filled up with 0. The first slice of an entry becomes
// the keys of its whole row.
template <class Key>
struct Scratch {
    Total* total;
    float* peak;
    float* log_sum;
    Key* key;
    int num_slices;

    __host__ __device__ explicit Scratch(const SelectParams& p) : num_slices(p.plan.num_slices) {
        const int64_t num_totals = p.num_entries * num_slices;
        total = reinterpret_cast<Total*>(p.scratch);
        key = reinterpret_cast<Key*>(total + num_totals);
        peak = reinterpret_cast<float*>(key + num_totals * kMaxRowKeys);
        log_sum = peak + p.num_entries;
    }

    __host__ __device__ int64_t bytes(int64_t num_entries) const {
        const int64_t per_slice = sizeof(Total) + kMaxRowKeys * sizeof(Key);
        return num_entries * (num_slices * per_slice + 2 * sizeof(float));
    }

    __device__ Total& total_of(int64_t entry, int slice) const {
        return total[entry * num_slices + slice];
    }

    __device__ Key* keys_of(int64_t entry, int slice) const {
        return key + (entry * num_slices + slice) * kMaxRowKeys;
    }
};

__device__ inline bool is_held(const SelectParams& p, int64_t entry) {
    return p.is_ended != nullptr && p.is_ended[entry];
}

__device__ inline bool is_forced(const SelectParams& p, int64_t beam) {
    return p.forced != nullptr && p.forced[beam] >= 0;
}

__device__ inline bool bans_eos(const SelectParams& p, int64_t beam) {
    return p.ban_eos != nullptr && p.ban_eos[beam];
}

// Most candidates of one row that can matter to its beam.
__device__ inline int row_limit(const SelectParams& p, int64_t beam) {
    const int width = min(p.width[beam], kMaxBlockWidth);
    const bool may_refill = p.finishing == Finishing::kRefill && width > 0;
    int64_t limit = may_refill ? width + p.eos.count : width;
    if (p.max_candidates != nullptr) limit = min(limit, int64_t{p.max_candidates[beam]});
    return static_cast<int>(max(min(limit, p.vocab_size), int64_t{0}));
}

// How many of the beam's candidates the finishing rule sees. There is one per thread, so wide beams
// with several EOS ids see fewer than the rule says.
__device__ inline int beam_limit(const SelectParams& p, int64_t beam) {
    const int per_place = p.finishing == Finishing::kRefill ? 1 + p.eos.count : 1;
    return min(per_place * p.width[beam], kThreads);
}

}  // namespace pybeam::cuda
