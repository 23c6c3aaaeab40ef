// Reads the arguments and the scratch memory of `select`.
#pragma once

#include <cstdint>

#include "logits.cuh"
#include "params.cuh"

namespace pybeam::cuda {

// The vectors of two neighbouring threads are a *group* of a slice, and its largest logit that may
// be chosen is its *peak*.
constexpr int kGroups = kThreads / 2;

// Peaks of four groups that follow one another.
struct alignas(16) Peaks {
    float of[4];

    __device__ float largest() const { return fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3])); }

    __device__ void drop_first() {
#pragma unroll
        for (int i = 0; i < 3; ++i) of[i] = of[i + 1];
    }
};

constexpr int kSlicePeaks = kGroups / 4;

// An entry, after its row has been read.
struct alignas(16) Entry {
    float score;
    float peak;
    float log_sum;  // +inf: no token of the row is a candidate
    float bound;    // candidates below it cannot be among the best
    int32_t row;
};

// A beam and where its entries stand.
struct Span {
    int beam;
    int begin;
    int end;
};

// Scratch memory: peaks [entries, slices, kGroups], entries, totals [entries, slices], and the row
// of every entry.
struct Scratch {
    Peaks* peaks;
    Entry* entry;
    Total* total;
    int32_t* row;
    int num_slices;

    __host__ __device__ explicit Scratch(const SelectParams& p) : num_slices(p.plan.num_slices) {
        peaks = reinterpret_cast<Peaks*>(p.scratch);
        entry = reinterpret_cast<Entry*>(peaks + p.num_entries * num_slices * kSlicePeaks);
        total = reinterpret_cast<Total*>(entry + p.num_entries);
        row = reinterpret_cast<int32_t*>(total + p.num_entries * num_slices);
    }

    __host__ __device__ int64_t bytes(int64_t num_entries) const {
        const int64_t per_slice = kSlicePeaks * sizeof(Peaks) + sizeof(Total);
        return num_entries * (num_slices * per_slice + sizeof(Entry) + sizeof(int32_t));
    }

    __device__ Peaks* peaks_of(int64_t entry, int slice) const {
        return peaks + (entry * num_slices + slice) * kSlicePeaks;
    }

    __device__ Total& total_of(int64_t entry, int slice) const {
        return total[entry * num_slices + slice];
    }
};

// Where the peaks and totals of rows stand whose slices have been read by a block each, with so
// many vectors for a thread, and which vectors are a group's.
template <int kVectors>
struct LeftBySlices {
    static constexpr int kTotalLanes = 8;    // that share the totals of a row
    static constexpr int kTotalsAtOnce = 1;  // that a lane loads
    static constexpr int kGroupVectors = 2 * kVectors;
    static constexpr bool kKnowsBans = true;  // no peak is of a token that the beam may not choose
    Scratch scratch;

    __device__ explicit LeftBySlices(const SelectParams& p) : scratch(p) {}

    __device__ int num_slices() const { return scratch.num_slices; }
    __device__ int num_totals() const { return scratch.num_slices; }
    __device__ const Peaks* peaks_of(int64_t entry) const { return scratch.peaks_of(entry, 0); }
    // Those of a slice of a beam whose first ones are given.
    __device__ static Peaks load_peaks(const Peaks* first, int slice) {
        return first[slice * kSlicePeaks];
    }
    __device__ Total total_of(int64_t entry, int i) const { return scratch.total_of(entry, i); }
    __device__ int32_t row_of(int64_t entry) const { return scratch.row[entry]; }

    __device__ static int32_t vector_of(int group, int i) {
        const int thread = group % kGroups * 2 + i % 2;
        return (group / kGroups * kVectors + i / 2) * kThreads + thread;
    }

    __device__ static Vector load(const uint4* address) { return load_vector(address); }
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

// How many of the beam's candidates the finishing rule sees. There is one per thread, so wide beams
// with several EOS ids see fewer than the rule says.
__device__ inline int beam_limit(const SelectParams& p, int64_t beam) {
    const int per_place = p.finishing == Finishing::kRefill ? 1 + p.eos.count : 1;
    return max(min(per_place * p.width[beam], kThreads), 0);
}

// How many candidates of one row may be among them.
__device__ inline int row_limit(const SelectParams& p, int64_t beam) {
    const int most = beam_limit(p, beam);
    return p.max_candidates == nullptr ? most : max(min(most, p.max_candidates[beam]), 0);
}

}  // namespace pybeam::cuda
