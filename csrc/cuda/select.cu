// `select` in one launch: a block reads one slice of one row, and the last block of a beam finds
// its candidates. It reads few logits again: those of the groups whose peaks reach what the beam
// wants.
#include "params.cuh"
#include "select_beam.cuh"
#include "select_row.cuh"

namespace pybeam::cuda {
namespace {

// The beam of an entry: how many beams end at or before it.
__device__ Span span_of(const SelectParams& p, int64_t entry) {
    int beam = 0;
#pragma unroll 1
    for (int64_t begin = 0; begin < p.num_beams; begin += kThreads) {
        const int64_t i = begin + threadIdx.x;
        beam += __syncthreads_count(i < p.num_beams && p.offset[i + 1] <= entry);
    }
    return {beam, p.offset[beam], p.offset[beam + 1]};
}

// How many blocks arrive at a beam: those of the rows of entries that are not held, and one more.
__device__ uint32_t num_arrivals(const SelectParams& p, const Span& span, WarpNumbers& numbers) {
    int num_live = span.end - span.begin;
    if (p.is_ended != nullptr) {
        int num_held = 0;
#pragma unroll 1
        for (int i = span.begin + threadIdx.x; i < span.end; i += kThreads) {
            num_held += is_held(p, i);
        }
        num_live -= block_reduce(num_held, Sum{}, numbers);
    }
    return num_live * p.plan.num_slices + 1;
}

// The entry of a row: the one that is not held and has `row` such entries before it; -1 for
// padding.
__device__ int64_t entry_of(const SelectParams& p, int64_t row, WarpNumbers& numbers) {
    const int64_t end = p.offset[p.num_beams];
    if (p.is_ended == nullptr) return row < end ? row : -1;
    __shared__ int64_t found;
    if (threadIdx.x == 0) found = -1;
    int64_t num_live = 0;
#pragma unroll 1
    for (int64_t begin = 0; begin < end && num_live <= row; begin += kThreads) {
        const int64_t entry = begin + threadIdx.x;
        const bool is_live = entry < end && !is_held(p, entry);
        const Rank rank = block_rank(is_live, numbers);
        if (is_live && num_live + rank.before == row) found = entry;
        num_live += rank.total;
    }
    __syncthreads();
    return found;
}

// The blocks of the rows, and one block for every beam, so that a beam without rows is written too.
// Held entries have no block.
template <class Logit, int kVectors>
__global__ void __launch_bounds__(kThreads, 4)
    select_kernel(const __grid_constant__ SelectParams p) {
    __shared__ BeamMemory memory;
    __shared__ Total warp_total[kWarps];
    await_kernels();
    const int64_t num_slices = p.num_rows * p.plan.num_slices;
    const int64_t own_beam = blockIdx.x - num_slices;
    int entry = -1, row = 0, number = 0;
    Span span;
    uint32_t expected;
    if (own_beam < 0) {
        row = blockIdx.x / p.plan.num_slices;
        number = blockIdx.x % p.plan.num_slices;
        entry = static_cast<int>(entry_of(p, row, memory.numbers));
        if (entry < 0) return;
        Slice<Logit, kVectors> slice(p, row, number);
        // while the logits are on their way
        span = span_of(p, entry);
        expected = num_arrivals(p, span, memory.numbers);
        const Total total = leave_peaks(p, entry, span.beam, slice);
        if (threadIdx.x % kWarpSize == 0) warp_total[threadIdx.x / kWarpSize] = total;
    } else {
        span = {static_cast<int>(own_beam), p.offset[own_beam], p.offset[own_beam + 1]};
        expected = num_arrivals(p, span, memory.numbers);
    }
    const auto leave_total = [&] {
        if (entry < 0) return;
        const Total total = combine_lanes<kWarps>(warp_total[threadIdx.x % kWarps]);
        if (threadIdx.x != 0) return;
        const Scratch scratch(p);
        scratch.total_of(entry, number) = total;
        if (number == 0) scratch.row[entry] = row;
    };
    if (!is_last_to_arrive(p.counter + span.beam, expected, leave_total)) return;
    const LeftBySlices<kVectors> left(p);
    if (span.end - span.begin > kMaxBlockWidth) {
        finish_beam<Logit, true>(p, left, span, memory);
    } else {
        finish_beam<Logit, false>(p, left, span, memory);
    }
}

int64_t vectors_of(const pybeam::SelectParams& p) {
    const int64_t per_vector = p.dtype == DType::kFloat32 ? 4 : 8;
    // a row may begin anywhere within its first vector
    return (p.vocab_size + 2 * per_vector - 2) / per_vector;
}

template <class Logit>
cudaError_t launch_logit(const SelectParams& p, cudaStream_t stream) {
    const int64_t num_blocks = p.num_rows * p.plan.num_slices + p.num_beams;
    const auto kernel = p.plan.vectors == 8   ? select_kernel<Logit, 8>
                        : p.plan.vectors == 4 ? select_kernel<Logit, 4>
                                              : select_kernel<Logit, 2>;
    return launch(kernel, num_blocks, kThreads, stream, p);
}

}  // namespace

// Gives a thread many vectors, unless many threads of a row would be left without one. The most
// are for rows enough to occupy all multiprocessors.
SelectPlan plan_select(const pybeam::SelectParams& p, int num_multiprocessors) {
    for (const int vectors : {8, 4, 2}) {
        const int64_t num_vectors = vectors_of(p), per_slice = vectors * kThreads;
        const int64_t num_slices = (num_vectors + per_slice - 1) / per_slice;
        const bool is_full = num_slices * per_slice * 3 <= num_vectors * 4;
        const bool are_many = p.num_rows * num_slices >= 2 * num_multiprocessors;
        if (vectors == 2 || (is_full && (vectors == 4 || are_many))) {
            return {vectors, static_cast<int>(num_slices)};
        }
    }
    __builtin_unreachable();
}

int64_t select_counters(const SelectParams& p) { return p.num_beams; }

int64_t select_scratch_bytes(const SelectParams& p) { return Scratch(p).bytes(p.num_entries); }

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
    return launch_logit<Float32>(p, stream);
}

}  // namespace pybeam::cuda
