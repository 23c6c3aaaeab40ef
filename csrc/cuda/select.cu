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

// The entries from begin to end that are not held.
__device__ int count_live(const SelectParams& p, int64_t begin, int64_t end) {
    int num_held = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) num_held += is_held(p, i);
    const int num_entries = static_cast<int>(end - begin);
    return p.is_ended == nullptr ? num_entries : num_entries - block_reduce(num_held, Sum{});
}

// The entry of a row: the one that is not held and has `row` such entries before it; -1 for
// padding.
__device__ int64_t entry_of(const SelectParams& p, int64_t row) {
    const int64_t end = p.offset[p.num_beams];
    if (p.is_ended == nullptr) return row < end ? row : -1;
    __shared__ int64_t found;
    if (threadIdx.x == 0) found = -1;
    int64_t num_live = 0;
    for (int64_t begin = 0; begin < end && num_live <= row; begin += kThreads) {
        const int64_t entry = begin + threadIdx.x;
        const bool is_live = entry < end && !is_held(p, entry);
        const Rank rank = block_rank(is_live);
        if (is_live && num_live + rank.before == row) found = entry;
        num_live += rank.total;
    }
    __syncthreads();
    return found;
}

// Reads a slice of a row, once; true for the block that completes the row.
template <class Logit, int kVectors, class Key>
__device__ bool read_row(const SelectParams& p, int64_t row, int slice_number, int64_t* beam,
                         RowMemory<kVectors, Key>& memory) {
    const Slice<Logit, kVectors> slice(p, row, slice_number);
    const int64_t entry = entry_of(p, row);  // while the logits are on their way
    if (entry < 0) return false;
    *beam = beam_of(p, entry);
    finish_slice(p, entry, *beam, slice, memory);
    if (!is_last_to_arrive(p.counter + row, p.plan.num_slices)) return false;
    finish_row(p, entry, *beam, memory.best);
    return true;
}

// The blocks of the rows, and one block for every beam, so that a beam without rows is written too.
// Held entries have no block.
template <class Logit, int kVectors, class Key>
__global__ void __launch_bounds__(kThreads, 4)
    select_kernel(const __grid_constant__ SelectParams p) {
    __shared__ Memory<kVectors, Key> memory;
    const int64_t num_slices = p.num_rows * p.plan.num_slices;
    int64_t beam = blockIdx.x - num_slices;
    if (beam < 0) {
        const int64_t row = blockIdx.x / p.plan.num_slices;
        const int slice = blockIdx.x % p.plan.num_slices;
        if (!read_row<Logit>(p, row, slice, &beam, memory.row)) return;
    }
    const uint32_t num_arrivals = count_live(p, p.offset[beam], p.offset[beam + 1]) + 1;
    if (!is_last_to_arrive(p.counter + p.num_rows + beam, num_arrivals)) return;
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
    const int64_t num_blocks = p.num_rows * p.plan.num_slices + p.num_beams;
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
SelectPlan plan_select(const pybeam::SelectParams& p, int num_multiprocessors) {
    const int64_t many = slices_of(p, kManyVectors);
    const bool is_small = p.num_rows * many < 2 * num_multiprocessors;
    const int vectors = is_small ? kFewVectors : kManyVectors;
    return {vectors, static_cast<int>(slices_of(p, vectors))};
}

int64_t select_counters(const SelectParams& p) { return p.num_rows + p.num_beams; }

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
