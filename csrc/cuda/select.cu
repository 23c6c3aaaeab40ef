// `select` in one launch: a block reads one slice of one row, the last block of a row combines its
// slices, and the last block of a beam combines its rows.
#include "params.cuh"
#include "select_beam.cuh"
#include "select_row.cuh"

namespace pybeam::cuda {
namespace {

template <int kVectors, class Key>
union Memory {
    RowMemory<kVectors, Key> row;
    BestKeys<uint64_t> beam;
};

// The beam of an entry: how many beams end at or before it.
__device__ int64_t beam_of(const SelectParams& p, int64_t entry) {
    int64_t beam = 0;
    for (int64_t begin = 0; begin < p.num_beams; begin += kThreads) {
        const int64_t i = begin + threadIdx.x;
        beam += __syncthreads_count(i < p.num_beams && p.offset[i + 1] <= entry);
    }
    return beam;
}

// The row of an entry: the entries before it that are not held.
__device__ int64_t row_of(const SelectParams& p, int64_t entry) {
    if (p.is_ended == nullptr) return entry;
    int num_held = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < entry; i += kThreads) num_held += p.is_ended[i];
    return entry - block_reduce(num_held, Sum{});
}

// Reads a slice of an entry, once; true for the block that completes the entry.
template <class Logit, int kVectors, class Key>
__device__ bool read_entry(const SelectParams& p, int64_t entry, int slice_number, int64_t* beam,
                           RowMemory<kVectors, Key>& memory) {
    if (entry >= p.offset[p.num_beams]) return false;  // padding
    if (is_held(p, entry)) {
        if (slice_number > 0) return false;
        *beam = beam_of(p, entry);
        return true;
    }
    const Slice<Logit, kVectors> slice(p, row_of(p, entry), slice_number);
    *beam = beam_of(p, entry);  // while the logits are on their way
    finish_slice(p, entry, *beam, slice, memory);
    if (!is_last_to_arrive(p.counter + entry, p.plan.num_slices)) return false;
    finish_row(p, entry, *beam, memory.best);
    return true;
}

// The blocks of the entries, and one block for every beam, so that a beam without entries is
// written too.
template <class Logit, int kVectors, class Key>
__global__ void __launch_bounds__(kThreads, 4)
    select_kernel(const __grid_constant__ SelectParams p) {
    __shared__ Memory<kVectors, Key> memory;
    const int64_t num_slices = p.num_entries * p.plan.num_slices;
    int64_t beam = blockIdx.x - num_slices;
    if (beam < 0) {
        const int64_t entry = blockIdx.x / p.plan.num_slices;
        const int slice = blockIdx.x % p.plan.num_slices;
        if (!read_entry<Logit>(p, entry, slice, &beam, memory.row)) return;
    }
    const uint32_t num_arrivals = p.offset[beam + 1] - p.offset[beam] + 1;
    if (!is_last_to_arrive(p.counter + p.num_entries + beam, num_arrivals)) return;
    finish_beam<Logit, Key>(p, beam, memory.beam);
}

constexpr int kFewVectors = 2;
constexpr int kManyVectors = 8;

bool keys_are_short(const pybeam::SelectParams& p) {
    return p.dtype != DType::kFloat32 && p.vocab_size <= 1 << kTokenBits<uint32_t>;
}

int64_t slices_of(const pybeam::SelectParams& p, int vectors) {
    const int64_t per_vector = p.dtype == DType::kFloat32 ? 4 : 8;
    // a row may begin anywhere within its first vector
    const int64_t num_vectors = (p.vocab_size + 2 * per_vector - 2) / per_vector;
    return (num_vectors + kThreads * vectors - 1) / (kThreads * vectors);
}

template <class Logit, class Key>
cudaError_t launch_key(const SelectParams& p, cudaStream_t stream) {
    const int64_t num_blocks = p.num_entries * p.plan.num_slices + p.num_beams;
    const auto kernel = p.plan.vectors == kManyVectors ? select_kernel<Logit, kManyVectors, Key>
                                                       : select_kernel<Logit, kFewVectors, Key>;
    return launch(kernel, num_blocks, kThreads, stream, p);
}

template <class Logit>
cudaError_t launch_logit(const SelectParams& p, cudaStream_t stream) {
    return keys_are_short(p) ? launch_key<Logit, uint32_t>(p, stream)
                             : launch_key<Logit, uint64_t>(p, stream);
}

}  // namespace

// Gives a thread few vectors if with many some multiprocessors would have fewer than two blocks.
SelectPlan plan_select(const pybeam::SelectParams& p, int64_t num_entries,
                       int num_multiprocessors) {
    const int64_t many = slices_of(p, kManyVectors);
    const bool is_small = num_entries * many < 2 * num_multiprocessors;
    const int vectors = is_small ? kFewVectors : kManyVectors;
    return {vectors, static_cast<int>(slices_of(p, vectors))};
}

int64_t select_counters(const SelectParams& p) { return p.num_entries + p.num_beams; }

int64_t select_scratch_bytes(const SelectParams& p) {
    return keys_are_short(p) ? Scratch<uint32_t>(p).bytes(p.num_entries)
                             : Scratch<uint64_t>(p).bytes(p.num_entries);
}

cudaError_t launch_select(const SelectParams& p, cudaStream_t stream) {
    if (p.num_beams == 0) return cudaSuccess;
    switch (p.dtype) {
        case DType::kBFloat16:
            return launch_logit<BFloat16>(p, stream);
        case DType::kFloat16:
            return launch_logit<Float16>(p, stream);
        case DType::kFloat32:
            break;
    }
    return launch_key<Float32, uint64_t>(p, stream);
}

}  // namespace pybeam::cuda
