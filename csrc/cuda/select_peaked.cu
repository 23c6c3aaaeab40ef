// `select` behind a product that has left the peaks of its logits: a block finds the candidates of
// a beam. It reads few logits, those of the groups whose peaks reach what the beam wants.
#include "select_beam.cuh"
#include "select_peaked.cuh"

namespace pybeam::cuda {
namespace {

// The rows of a beam's entries.
struct RowsOfBeam {
    int begin;
    int row[kMaxBlockWidth];
};

// Where the peaks and totals of rows stand whose columns a product has gone through in order.
struct LeftByProduct {
    static_assert(kPeaksAtOnce == kGroups);
    static constexpr int kTotalLanes = kWarpSize, kTotalsAtOnce = 4;
    static constexpr int kGroupVectors = kPeakColumns / 8;
    static constexpr bool kKnowsBans = false;
    const PeakedParams& p;
    const RowsOfBeam& rows;

    __device__ int num_slices() const { return p.num_slices; }
    __device__ int num_totals() const { return p.num_totals; }

    // The row of an entry of the beam whose survivors are found.
    __device__ int32_t row_of(int64_t entry) const {
        const auto own = static_cast<int>(entry);
        return p.select.is_ended == nullptr ? own : rows.row[own - rows.begin];
    }

    __device__ Total total_of(int64_t entry, int i) const {
        return p.totals[int64_t{row_of(entry)} * p.num_totals + i];
    }

    __device__ const Peaks* peaks_of(int64_t entry) const {
        const int64_t row = p.select.is_ended == nullptr ? entry : 0;
        return reinterpret_cast<const Peaks*>(p.peaks) + row * p.num_slices * kSlicePeaks;
    }

    __device__ Peaks load_peaks(const Peaks* first, int slice) const {
        int64_t own = slice;
        if (p.select.is_ended != nullptr) {
            const int row = rows.row[slice / p.num_slices];
            if (row < 0) return {kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity};
            own = int64_t{row} * p.num_slices + slice % p.num_slices;
        }
        return first[own * kSlicePeaks];
    }

    __device__ static int32_t vector_of(int group, int i) { return group * kGroupVectors + i; }

    __device__ static Vector load(const uint4* address) { return load_vector(address); }
};

// Finds the rows of a beam: entries that are held have none.
__device__ void find_rows(const SelectParams& p, const Span& span, RowsOfBeam& rows,
                          WarpNumbers& numbers) {
    if (p.is_ended == nullptr) return;
    int num_before = 0;
    for (int i = threadIdx.x; i < span.begin; i += kThreads) num_before += !is_held(p, i);
    num_before = block_reduce(num_before, Sum{}, numbers);
    const int own = span.begin + static_cast<int>(threadIdx.x);
    const bool is_there = own < span.end, is_live = is_there && !is_held(p, own);
    const Rank rank = block_rank(is_live, numbers);
    if (is_there) rows.row[threadIdx.x] = is_live ? num_before + rank.before : -1;
    if (threadIdx.x == 0) rows.begin = span.begin;
    __syncthreads();
}

template <class Logit>
__global__ void __launch_bounds__(kThreads)
    select_peaked_kernel(const __grid_constant__ PeakedParams p) {
    __shared__ BeamMemory memory;
    __shared__ RowsOfBeam rows;
    await_kernels();
    const int beam = blockIdx.x, begin = p.select.offset[beam];
    // no beam has more
    const Span span{beam, begin, min(p.select.offset[beam + 1], begin + kMaxBlockWidth)};
    find_rows(p.select, span, rows, memory.numbers);
    finish_beam<Logit, false>(p.select, LeftByProduct{p, rows}, span, memory);
}

}  // namespace

cudaError_t launch_peaked(const PeakedParams& p, cudaStream_t stream) {
    const int64_t num_beams = p.select.num_beams;
    if (num_beams == 0) return cudaSuccess;
    const bool is_float16 = p.select.dtype == DType::kFloat16;
    const auto kernel = is_float16 ? select_peaked_kernel<Float16> : select_peaked_kernel<BFloat16>;
    return launch(kernel, num_beams, kThreads, stream, p);
}

}  // namespace pybeam::cuda
