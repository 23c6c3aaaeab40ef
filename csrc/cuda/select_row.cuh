// From the logits of a row to the peaks of its groups and its log-sum.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "select_params.cuh"

namespace pybeam::cuda {

constexpr float kLog2E = 1.4426950408889634f;

template <int kVectors>
constexpr int kSliceVectors = kThreads * kVectors;

// A row and the 16-byte vectors that cover it; the first and the last may reach beyond it.
template <class Logit>
struct Row {
    using Bits = typename Logit::Bits;
    const Bits* logits;
    int32_t lead;  // numbers of the first vector before the row
    int32_t vocab_size;

    __device__ Row(const SelectParams& p, int64_t row)
        : vocab_size(static_cast<int32_t>(p.vocab_size)) {
        logits = static_cast<const Bits*>(p.logits) + row * p.row_stride;
        lead =
            static_cast<int32_t>(reinterpret_cast<uintptr_t>(logits) % kVectorBytes / sizeof(Bits));
    }

    __device__ const uint4* vectors() const {
        return reinterpret_cast<const uint4*>(logits - lead);
    }

    __device__ int32_t num_vectors() const {
        return (lead + vocab_size + kPerVector<Logit> - 1) / kPerVector<Logit>;
    }

    __device__ int32_t token(int32_t vector, int j) const {
        return vector * kPerVector<Logit> + j - lead;
    }

    __device__ bool has(int32_t token) const { return token >= 0 && token < vocab_size; }
};

// One slice of a row: the vectors `first + i * kThreads + threadIdx.x`, read at once.
template <class Logit, int kVectors>
struct Slice {
    Row<Logit> row;
    int number;
    int32_t first;
    Vector vector[kVectors];

    __device__ Slice(const SelectParams& p, int64_t row_number, int slice_number)
        : row(p, row_number), number(slice_number), first(slice_number * kSliceVectors<kVectors>) {
        const int32_t num_vectors = row.num_vectors();
        const uint4* address = row.vectors() + first + threadIdx.x;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (place(i) < num_vectors) {
                vector[i] = load_vector(address + i * kThreads);
            } else {
#pragma unroll
                for (int j = 0; j < kPerVector<Logit>; ++j) put_nothing(i, j);
            }
        }
        const bool is_edge = first == 0 || first + kSliceVectors<kVectors> >= num_vectors;
        if (is_edge) clear_edges(num_vectors);
    }

    __device__ int32_t place(int i) const {
        return first + i * kThreads + static_cast<int32_t>(threadIdx.x);
    }

    __device__ void put_nothing(int i, int j) {
        Logit::put(vector[i], j, Logit::kMinusInfinityBits);
    }

    __device__ void clear_edges(int32_t num_vectors) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (place(i) != 0 && place(i) != num_vectors - 1) continue;
#pragma unroll
            for (int j = 0; j < kPerVector<Logit>; ++j) {
                if (!row.has(row.token(place(i), j))) put_nothing(i, j);
            }
        }
    }

    __device__ float peak() const {
        float peak = kMinusInfinity;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) peak = fmaxf(peak, Logit::largest(vector[i]));
        return peak;
    }

    // Sum of exp(logit - peak).
    __device__ float sum(float peak) const {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kPerVector<Logit>; j += 2) {
                even += exp2_fast((Logit::at(vector[i], j) - peak) * kLog2E);
                odd += exp2_fast((Logit::at(vector[i], j + 1) - peak) * kLog2E);
            }
        }
        return even + odd;
    }

    // Leaves out tokens that may not be chosen.
    __device__ void ban(const EosIds& tokens) {
#pragma unroll 1
        for (int e = 0; e < tokens.count; ++e) {
            const int32_t at = tokens.id[e] - row.token(place(0), 0);
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
#pragma unroll
                for (int j = 0; j < kPerVector<Logit>; ++j) {
                    if (at == i * kThreads * kPerVector<Logit> + j) put_nothing(i, j);
                }
            }
        }
    }
};

// Puts totals of a row together.
template <int kNumber>
__device__ Total combine(Total total, const Total (&others)[kNumber]) {
    float peak = total.peak;
#pragma unroll
    for (int i = 0; i < kNumber; ++i) peak = fmaxf(peak, others[i].peak);
    const float reference = peak == kMinusInfinity ? 0.0f : peak;
    float sum = total.sum * exp2_fast((total.peak - reference) * kLog2E);
#pragma unroll
    for (int i = 0; i < kNumber; ++i) {
        sum += others[i].sum * exp2_fast((others[i].peak - reference) * kLog2E);
    }
    return {peak, sum};
}

__device__ inline Total combine(Total total, Total other) {
    const Total others[1] = {other};
    return combine(total, others);
}

// Combines the totals of so many neighbouring lanes, in the same order every time.
template <int kLanes>
__device__ Total combine_lanes(Total total) {
#pragma unroll 1
    for (int step = kLanes / 2; step > 0; step /= 2) {
        const Total other{__shfl_xor_sync(kAllLanes, total.peak, step),
                          __shfl_xor_sync(kAllLanes, total.sum, step)};
        total = combine(total, other);
    }
    return total;
}

// Writes the peaks of the groups of a slice; returns the total of each warp to its threads.
template <class Logit, int kVectors>
__device__ Total leave_peaks(const SelectParams& p, int64_t entry, int beam,
                             Slice<Logit, kVectors>& slice) {
    float peak = slice.peak();
    const float sum = slice.sum(peak == kMinusInfinity ? 0.0f : peak);
    const Total total = combine_lanes<kWarpSize>({peak, sum});
    if (bans_eos(p, beam)) {
        slice.ban(p.eos);
        peak = slice.peak();
    }
    peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, 1));
    const int group = threadIdx.x / 2;
    Peaks* peaks = Scratch(p).peaks_of(entry, slice.number);
    if (threadIdx.x % 2 == 0) peaks[group / 4].of[group % 4] = peak;
    return total;
}

}  // namespace pybeam::cuda
