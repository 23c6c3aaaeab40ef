// From the logits of a row to its best candidates and its log-sum.
#pragma once

#include <cstdint>

#include "best_keys.cuh"
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

// One slice of a row: the vectors `first + i * kThreads + threadIdx.x`.
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

    // Lists the vectors, counted within the slice, whose largest logit reaches `bound`.
    __device__ void list_vectors(float bound, uint16_t* list, int* count) const {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (Logit::largest(vector[i]) >= bound) {
                list[atomicAdd(count, 1)] = static_cast<uint16_t>(i * kThreads + threadIdx.x);
            }
        }
    }
};

template <int kVectors, class Key>
struct RowMemory {
    BestKeys<Key> best;
    uint16_t list[kSliceVectors<kVectors>];
    int count;
};

template <class Key>
__device__ void write_best(const BestKeys<Key>& best, int count, int limit, Key* out) {
    for (int i = threadIdx.x; i < limit; i += kThreads) out[i] = i < count ? best.key[i] : Key{0};
}

// Writes the total of a slice and its `limit` best keys. The best keys lie in the vectors whose
// largest logits are best; a bound on those comes from the largest logits of threads.
template <class Logit, int kVectors, class Key>
__device__ void finish_slice(const SelectParams& p, int64_t entry, int64_t beam,
                             const Slice<Logit, kVectors>& slice,
                             RowMemory<kVectors, Key>& memory) {
    if (threadIdx.x == 0) memory.count = 0;
    const float thread_peak = slice.peak();
    const float peak = block_reduce(thread_peak, Max{});
    const float thread_sum = slice.sum(peak == kMinusInfinity ? 0.0f : peak);
    const double sum = block_reduce(static_cast<double>(thread_sum), Sum{});
    const Scratch<Key> scratch(p);
    if (threadIdx.x == 0) scratch.total_of(entry, slice.number) = Total{sum, peak};

    const int limit = row_limit(p, beam);
    if (limit == 0) return;
    const bool bans = bans_eos(p, beam);
    // banned tokens may be among those that make the bound
    const int wanted = limit + (bans ? p.eos.count : 0);
    const float bound = block_bound(thread_peak, wanted);
    slice.list_vectors(bound, memory.list, &memory.count);
    __syncthreads();
    const int num_logits = memory.count * kPerVector<Logit>;
    const auto key_of = [&](int i) {
        const int32_t vector = slice.first + memory.list[i / kPerVector<Logit>];
        const int32_t token = slice.row.token(vector, i % kPerVector<Logit>);
        if (!slice.row.has(token) || (bans && p.eos.has(token))) return Key{0};
        const auto bits = slice.row.logits[token];
        return Logit::to_float(bits) >= bound ? token_key<Logit, Key>(bits, token) : Key{0};
    };
    const int count = collect_best(memory.best, num_logits, limit, key_of);
    write_best(memory.best, count, limit, scratch.keys_of(entry, slice.number));
}

// Combines the slices of a row: its peak, its log-sum and its `limit` best keys.
template <class Key>
__device__ void finish_row(const SelectParams& p, int64_t entry, int64_t beam,
                           BestKeys<Key>& best) {
    const Scratch<Key> scratch(p);
    float peak = kMinusInfinity;
    for (int i = threadIdx.x; i < scratch.num_slices; i += kThreads) {
        peak = fmaxf(peak, scratch.total_of(entry, i).peak);
    }
    peak = block_reduce(peak, Max{});
    const double reference = peak == kMinusInfinity ? 0.0 : peak;
    double sum = 0.0;
    for (int i = threadIdx.x; i < scratch.num_slices; i += kThreads) {
        const Total total = scratch.total_of(entry, i);
        sum += total.sum * exp(total.peak - reference);
    }
    sum = block_reduce(sum, Sum{});
    if (threadIdx.x == 0) {
        // a sum of NaN says that there is a NaN in the row
        const bool is_plain = !p.normalise && !isnan(sum);
        scratch.peak[entry] = is_plain ? 0.0f : peak;
        scratch.log_sum[entry] = is_plain ? 0.0f : static_cast<float>(log(sum));
    }
    const int limit = row_limit(p, beam);
    if (scratch.num_slices == 1 || limit == 0) return;
    const int num_keys = scratch.num_slices * limit;
    const auto key_of = [&](int i) { return scratch.keys_of(entry, i / limit)[i % limit]; };
    const int count = collect_best(best, num_keys, limit, key_of);
    write_best(best, count, limit, scratch.keys_of(entry, 0));
}

}  // namespace pybeam::cuda
