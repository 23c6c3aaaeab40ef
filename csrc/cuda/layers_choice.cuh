// The selection behind the logits of `decoder_layers`: each block leaves the peaks and totals of
// its own logits, and some blocks find the survivors of a beam each, as the last blocks of `select`
// do.
#pragma once

#include "layers_block.cuh"
#include "select_beam.cuh"

namespace pybeam::cuda {

// Where the peaks and totals of rows stand whose logits all blocks have made. The logits that a
// block makes at once are a group of `kMaxGroups` vectors, some of which may not be there.
struct LeftByBlocks {
    static_assert(kChoiceGroups == kGroups);
    static constexpr int kTotalLanes = kWarpSize, kTotalsAtOnce = 5;
    static constexpr int kGroupVectors = kMaxGroups;
    static constexpr bool kKnowsBans = true;
    const LayersParams& p;
    const ChoiceParts& parts;

    __device__ int num_slices() const { return p.choice.num_slices; }
    __device__ int num_totals() const { return p.plan.num_blocks; }

    // The row of an entry of the beam whose survivors are found.
    __device__ int32_t row_of(int64_t entry) const {
        const auto own = static_cast<int>(entry);
        return p.choice.select.is_ended == nullptr ? own : parts.row[own - parts.begin];
    }

    __device__ const Peaks* peaks_of(int64_t entry) const {
        return reinterpret_cast<const Peaks*>(p.choice.peaks) + entry * num_slices() * kSlicePeaks;
    }

    __device__ static Peaks load_peaks(const Peaks* first, int slice) {
        return first[slice * kSlicePeaks];
    }

    __device__ float& peak_of(int64_t entry, int group) const {
        return p.choice.peaks[entry * num_slices() * kGroups + group];
    }

    __device__ Total& total_of(int64_t entry, int block) const {
        return p.choice.totals[entry * num_totals() + block];
    }

    __device__ int32_t vector_of(int group, int i) const {
        const int num_blocks = p.plan.num_blocks, round = group / num_blocks;
        return (round * kMaxGroups + i) * num_blocks + group % num_blocks;
    }

    // Other blocks have written them in the same launch.
    __device__ static Vector load(const uint4* address) {
        const uint4 x = load_relaxed(address);
        return {{x.x, x.y, x.z, x.w}};
    }
};

template <class Number>
class Choice {
  public:
    __device__ Choice(const LayersParams& p, const Memory& memory, int num_rows)
        : p_(p), memory_(memory), left_{p, *memory.parts}, num_rows_(num_rows) {}

    // All threads meet here and behind.
    __device__ void begin(int num_rounds) {
        if (!p_.has_choice) return;
        find_entries();
        const int row = threadIdx.x;
        if (row >= num_rows_) return;
        const int entry = memory_.choice->entry[row];
        memory_.choice->total[row] = {kMinusInfinity, 0.0f};
        left_.total_of(entry, blockIdx.x) = {kMinusInfinity, 0.0f};
        int beam = 0;
        while (p_.seen.offset[beam + 1] <= row) ++beam;
        memory_.choice->bans[row] = bans_eos(p_.choice.select, beam);
        // groups that this block has not
        const int end = left_.num_slices() * kGroups, num_blocks = p_.plan.num_blocks;
        for (int group = num_rounds * num_blocks + blockIdx.x; group < end; group += num_blocks) {
            left_.peak_of(entry, group) = kMinusInfinity;
        }
    }

    // Which of two columns are ends: bits, that of the first column first.
    __device__ int ends_of(int column) const {
        if (!p_.has_choice) return 0;
        const EosIds& eos = p_.choice.select.eos;
        return int{eos.has(column)} | int{eos.has(column + 1)} << 1;
    }

    // Leaves what the choice wants of the logits of eight rows, two numbers of a thread. A warp has
    // a group of columns, a lane two of them in one row. All threads call it.
    __device__ void leave_logits(int num_groups, int first_group, int first, uint32_t pair,
                                 int ends) {
        const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
        const int line = lane % kLines, row = first + line;
        const int column = column_of(p_, first_group + warp) + 2 * (lane / kLines);
        float2 logit = floats_of<Number>(pair);
        const bool is_there = warp < num_groups && row < num_rows_;
        if (!is_there || column >= p_.num_logits) logit.x = kMinusInfinity;
        if (!is_there || column + 1 >= p_.num_logits) logit.y = kMinusInfinity;
        const int banned = is_there && memory_.choice->bans[row] ? ends : 0;
        const float2 allowed{banned & 1 ? kMinusInfinity : logit.x,
                             banned & 2 ? kMinusInfinity : logit.y};
        Part own{largest_of_row(fmaxf(allowed.x, allowed.y)),
                 {largest_of_row(fmaxf(logit.x, logit.y)), 0.0f}};
        own.total.sum = share(logit.x, own.total.peak) + share(logit.y, own.total.peak);
#pragma unroll
        for (int step = kLines; step < kWarpSize; step *= 2) {
            own.total.sum += __shfl_xor_sync(kAllLanes, own.total.sum, step);
        }
        if (lane < kLines) memory_.parts->part[warp][line] = own;
        __syncthreads();
        if (threadIdx.x >= kLines || row >= num_rows_) return;
        const int round = first_group / kMaxGroups;
        const int entry = memory_.choice->entry[row];
        left_.peak_of(entry, round * p_.plan.num_blocks + blockIdx.x) = combined(line, own.total);
        Total& total = memory_.choice->total[row];
        total = combine(total, own.total);
        left_.total_of(entry, blockIdx.x) = total;
    }

    // The survivors of this block's beams, when all blocks have left their logits.
    __device__ void finish_beams() const {
        if (!p_.has_choice) return;
        if (num_rows_ > 0) meet();
        auto& shared = *reinterpret_cast<BeamMemory*>(memory_.ring.stages);
        const SelectParams& select = p_.choice.select;
        for (int beam = blockIdx.x; beam < select.num_beams; beam += p_.plan.num_blocks) {
            const int begin = select.offset[beam];
            // no beam has more
            const int end = min(select.offset[beam + 1], begin + kMaxBlockWidth);
            const Span span{beam, begin, end};
            find_rows(span, shared.numbers);
            finish_beam<Number, false>(select, left_, span, shared);
            __syncthreads();
        }
    }

  private:
    using Part = ChoiceParts::Part;

    // The entries of all rows: those that are not held, in order.
    __device__ void find_entries() const {
        const SelectParams& select = p_.choice.select;
        int* entry = memory_.choice->entry;
        if (select.is_ended == nullptr) {
            if (threadIdx.x < kMaxRows) entry[threadIdx.x] = static_cast<int>(threadIdx.x);
            return;
        }
        // before others have sums there
        auto& numbers = *reinterpret_cast<WarpNumbers*>(memory_.partial);
        const int end = select.offset[select.num_beams];
        for (int first = 0, row = 0; first < end; first += kThreads) {
            const int own = first + static_cast<int>(threadIdx.x);
            const bool is_live = own < end && !is_held(select, own);
            const Rank rank = block_rank(is_live, numbers);
            if (is_live && row + rank.before < kMaxRows) entry[row + rank.before] = own;
            row += rank.total;
        }
        __syncthreads();
    }

    // The rows of a beam's entries.
    __device__ void find_rows(const Span& span, WarpNumbers& numbers) const {
        const SelectParams& select = p_.choice.select;
        if (select.is_ended == nullptr) return;
        const int own = span.begin + static_cast<int>(threadIdx.x);
        const bool is_live = own < span.end && !is_held(select, own);
        const Rank rank = block_rank(is_live, numbers);
        const int row = p_.seen.offset[span.beam] + rank.before;
        if (own < span.end) memory_.parts->row[threadIdx.x] = row;
        if (threadIdx.x == 0) memory_.parts->begin = span.begin;
        __syncthreads();
    }

    // The largest number of the lanes that have a row.
    __device__ static float largest_of_row(float x) {
#pragma unroll
        for (int step = kLines; step < kWarpSize; step *= 2) {
            x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
        }
        return x;
    }

    __device__ static float share(float logit, float peak) {
        return exp2_fast((logit - (peak == kMinusInfinity ? 0.0f : peak)) * kLog2E);
    }

    // Puts together what all warps have of a row: the peak, which it returns, and the total.
    __device__ float combined(int line, Total& total) const {
        float peak = kMinusInfinity;
        Total totals[kWarps];
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            const Part& part = memory_.parts->part[warp][line];
            peak = fmaxf(peak, part.peak);
            totals[warp] = part.total;
        }
        total = combine(Total{kMinusInfinity, 0.0f}, totals);
        return peak;
    }

    // Counts this block, and waits for all of them if it has a beam.
    __device__ void meet() const {
        __syncthreads();
        uint32_t* arrived = p_.books + 2;
        if (threadIdx.x == 0) count_arrival(arrived, UINT32_MAX);
        if (static_cast<int64_t>(blockIdx.x) >= p_.choice.select.num_beams) return;
        const auto all = static_cast<uint32_t>(p_.plan.num_blocks);
        if (threadIdx.x == 0) {
            while (load_acquire(arrived) < all) {
            }
        }
        __syncthreads();
    }

    const LayersParams& p_;
    const Memory& memory_;
    LeftByBlocks left_;
    int num_rows_;
};

}  // namespace pybeam::cuda
