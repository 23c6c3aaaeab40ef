// From the rows of a beam to its best candidates, and to its survivors.
#pragma once

#include <cstdint>

#include "candidates.cuh"
#include "score_bounds.cuh"
#include "select_row.cuh"
#include "survivors.cuh"

namespace pybeam::cuda {

constexpr float kLeastFinite = -__FLT_MAX__;

// Lives in shared memory.
struct BeamMemory {
    Entry entry[kMaxBlockWidth];
    Candidates list;
    alignas(16) uint32_t bin[kBins];
    uint32_t bound;
    WarpNumbers numbers;
};

// The candidates of one beam. A block computes all of this together. `Left` is `LeftBySlices`, or
// has its functions. Beams of more than `kMaxBlockWidth` entries are wide.
template <class Logit, class Left, bool kIsWide>
struct Beam {
    const SelectParams& p;
    BeamMemory& memory;
    Left left;
    int number;
    int begin;
    int num_entries;
    int wanted;
    int limit;
    bool forced;
    bool bans;
    int num_banned;  // peaks of a row that may be of tokens that may not be chosen
    int num_bins;
    int row_bins;

    __device__ Beam(const SelectParams& params, const Left& left, const Span& span,
                    BeamMemory& shared)
        : p(params),
          memory(shared),
          left(left),
          number(span.beam),
          begin(span.begin),
          num_entries(span.end - span.begin),
          wanted(beam_limit(params, span.beam)),
          limit(row_limit(params, span.beam)),
          forced(is_forced(params, span.beam)),
          bans(bans_eos(params, span.beam)),
          num_banned(bans && !Left::kKnowsBans ? params.eos.count : 0),
          num_bins(bins_in_use(wanted + num_banned * num_entries)),
          row_bins(max(min(limit + num_banned, num_bins / max(num_entries, 1)), 1)) {}

    // Few beams have more entries than there is room for in shared memory.
    __device__ Entry& entry_of(int i) const {
        if constexpr (kIsWide) return left.scratch.entry[begin + i];
        return memory.entry[i];
    }

    // Whether an entry has one candidate, whatever its logits.
    __device__ bool is_single(int i) const { return forced || is_held(p, begin + i); }

    __device__ float score_of(const Entry& entry, float logit) const {
        return entry.score + ((logit - entry.peak) - entry.log_sum);
    }

    // Puts together the totals of every row. Returns whether a row has a NaN.
    __device__ bool combine_totals() const {
        constexpr int kLanes = Left::kTotalLanes, kAtOnce = Left::kTotalsAtOnce;
        bool has_nan = false;
#pragma unroll 1
        for (int first = 0; first < num_entries; first += kThreads / kLanes) {
            const int i = first + static_cast<int>(threadIdx.x) / kLanes;
            const int lane = threadIdx.x % kLanes;
            const bool has_row = i < num_entries && !is_held(p, begin + i);
            // loads come first, so that they wait together
            const float score = i < num_entries ? p.score[begin + i] : 0.0f;
            const int32_t row = has_row ? left.row_of(begin + i) : 0;
            const int num_totals = has_row ? left.num_totals() : 0;
            Total total{kMinusInfinity, 0.0f};
#pragma unroll 1
            for (int first = lane; first < num_totals; first += kAtOnce * kLanes) {
                Total loaded[kAtOnce];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    const int place = first + j * kLanes;
                    loaded[j] = {kMinusInfinity, 0.0f};
                    if (place < num_totals) loaded[j] = left.total_of(begin + i, place);
                }
                total = combine(total, loaded);
            }
            total = combine_lanes<kLanes>(total);
            has_nan |= has_row && isnan(total.sum);
            if (lane > 0 || i >= num_entries) continue;
            const bool has_tokens = has_row && !forced && limit > 0;
            Entry entry{score, 0.0f, p.normalise ? logf(total.sum) : 0.0f, 0.0f, row};
            if (p.normalise) entry.peak = total.peak;
            if (!has_tokens) entry.log_sum = -kMinusInfinity;
            entry_of(i) = entry;
        }
        return __syncthreads_or(has_nan);
    }

    // Calls use(i, number, peaks) for all peaks of the beam; `number` is that of the first of their
    // groups. A warp takes the peaks of a slice, a lane those of four groups.
    template <class Use>
    __device__ void for_each_peaks(Use use) const {
        static_assert(kSlicePeaks == kWarpSize);
        constexpr int kAtOnce = 4;
        const int num_slices = left.num_slices(), all = num_entries * num_slices;
        const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
        const int more_entries = kWarps / num_slices, more_slices = kWarps % num_slices;
        const Peaks* peaks = left.peaks_of(begin) + lane;
        int i = warp / num_slices, slice = warp % num_slices;
#pragma unroll 1
        for (int first = warp; first < all; first += kAtOnce * kWarps) {
            Peaks loaded[kAtOnce];
#pragma unroll
            for (int at = 0; at < kAtOnce; ++at) {
                const int place = first + at * kWarps;
                if (place < all) loaded[at] = left.load_peaks(peaks, place);
            }
#pragma unroll 1
            for (int place = first; place < min(first + kAtOnce * kWarps, all); place += kWarps) {
                use(i, slice * kGroups + 4 * lane, loaded[0]);
#pragma unroll
                for (int at = 1; at < kAtOnce; ++at) loaded[at - 1] = loaded[at];
                i += more_entries;
                slice += more_slices;
                if (slice >= num_slices) slice -= num_slices, ++i;
            }
        }
    }

    // A bound for every entry that its candidates reach if they are among the best of the beam.
    __device__ void bound_entries() const {
        const auto put = [&](int bin, float score) {
            if (score >= kLeastFinite) {
                atomicMax(&memory.bin[bin & (num_bins - 1)], ordered_bits(score));
            }
        };
        const int lane_bin = static_cast<int>(threadIdx.x) % kWarpSize % row_bins;
        for_each_peaks([&](int i, int group, Peaks peaks) {
            const Entry& entry = entry_of(i);
            const int bin = i * row_bins;
            // few bins take the largest peak of four groups
            if (row_bins <= kWarpSize) {
                put(bin + lane_bin, score_of(entry, peaks.largest()));
                return;
            }
#pragma unroll 1
            for (int j = 0; j < 4; ++j) {
                put(bin + (group + j) % row_bins, score_of(entry, peaks.of[0]));
                peaks.drop_first();
            }
        });
        __syncthreads();
        const int num_used = min(num_entries * row_bins, num_bins);
        const int least = wanted + num_banned * num_entries;
        const float bound = bin_bound(memory.bin, num_bins, num_used, least, memory.bound);
        // few bins: then each row keeps to its own limit
        const bool has_few = bound == kLeastFinite && row_bins == limit + num_banned &&
                             num_entries * row_bins <= num_bins;
#pragma unroll 1
        for (int i = threadIdx.x; i < num_entries; i += kThreads) {
            uint32_t least = 0xffffffffu;
#pragma unroll 1
            for (int j = 0; has_few && j < row_bins; ++j) {
                least = min(least, memory.bin[i * row_bins + j]);
            }
            const float own = has_few ? float_from_ordered(least) : bound;
            entry_of(i).bound = own >= kLeastFinite ? own : kLeastFinite;
        }
        __syncthreads();
    }

    // The only candidate of an entry.
    __device__ Key single(int i) const {
        const float score = entry_of(i).score;
        const bool held = is_held(p, begin + i);
        if (score == kMinusInfinity) return {0, 0};
        return Key::of(score, i, 0.0f, held ? p.eos.id[0] : p.forced[number]);
    }

    __device__ Row<Logit> row_of(int i) const { return Row<Logit>(p, entry_of(i).row); }

    // A token of a row, if it reaches the bound of its entry and may be chosen.
    __device__ Key token_key(int i, const Entry& entry, const Row<Logit>& row, int32_t token,
                             float logit) const {
        const float score = score_of(entry, logit);
        const bool counts = score >= entry.bound && row.has(token);
        if (!counts || (bans && p.eos.has(token))) return Key{0, 0};
        return Key::of(score, i, logit, token);
    }

    // Lists the candidates that reach their bounds; false: there was no room for all.
    __device__ bool list_candidates() const {
#pragma unroll 1
        for (int i = threadIdx.x; i < num_entries; i += kThreads) {
            if (!is_single(i)) continue;
            const Key own = single(i);
            if (own.upper != 0) memory.list.add(own);
        }
        for_each_peaks([&](int i, int group, Peaks peaks) {
            const Entry& entry = entry_of(i);
            if (!(score_of(entry, peaks.largest()) >= entry.bound)) return;
#pragma unroll 1
            for (int j = 0; j < 4; ++j) {
                if (score_of(entry, peaks.of[0]) >= entry.bound) {
                    const int place = atomicAdd(&memory.list.num_groups, 1);
                    if (place < kRoom) memory.list.group[place] = {i, group + j};
                }
                peaks.drop_first();
            }
        });
        __syncthreads();
        if (memory.list.num_groups > kRoom) return false;
        list_tokens();
        __syncthreads();
        return memory.list.count <= kRoom;
    }

    // Lists the tokens of the groups that are listed.
    __device__ void list_tokens() const {
        constexpr int kPerGroup = Left::kGroupVectors;
        const auto place_of = [&](const Group& group, int i) {
            return left.vector_of(group.number, i % kPerGroup);
        };
        for_each_loaded(
            memory.list.num_groups * kPerGroup,
            [&](int i) {
                const Group group = memory.list.group[i / kPerGroup];
                const Row<Logit> row = row_of(group.entry);
                const int32_t place = place_of(group, i);
                if (place >= row.num_vectors()) return Vector{};
                return left.load(row.vectors() + place);
            },
            [&](int i, const Vector& vector) {
                const Group group = memory.list.group[i / kPerGroup];
                const Entry& entry = entry_of(group.entry);
                unsigned reaching = 0;
#pragma unroll
                for (int j = 0; j < kPerVector<Logit>; ++j) {
                    const float score = score_of(entry, Logit::at(vector, j));
                    reaching |= unsigned{score >= entry.bound} << j;
                }
                if (reaching == 0) return;
                const Row<Logit> row = row_of(group.entry);
                const int32_t place = place_of(group, i);
#pragma unroll 1
                for (; reaching != 0; reaching &= reaching - 1) {
                    const int j = __popc((reaching & -reaching) - 1);
                    const Key key = token_key(group.entry, entry, row, row.token(place, j),
                                              number_at<Logit>(vector, j));
                    if (key.upper != 0) memory.list.add(key);
                }
            });
    }

    // Lists the best of any number of candidates: whenever the room is full, only the best stay.
    __device__ void list_best_of_all() const {
        __syncthreads();
        if (threadIdx.x == 0) memory.list.count = 0;
        __syncthreads();
        Key least{0, 0};  // what is not above it cannot be among the best
#pragma unroll 1
        for (int i = 0; i < num_entries; ++i) {
            const bool has_one = is_single(i);
            const Row<Logit> row = row_of(i);
            const Entry& entry = entry_of(i);
            const int32_t end = has_one ? 1 : row.vocab_size;
#pragma unroll 1
            for (int32_t first = 0; first < end; first += kThreads) {
                if (memory.list.count > kRoom - kThreads) least = keep_best();
                const int32_t token = first + static_cast<int32_t>(threadIdx.x);
                Key key{0, 0};
                if (token < end) {
                    key = has_one
                              ? single(i)
                              : token_key(i, entry, row, token, Logit::to_float(row.logits[token]));
                }
                __syncthreads();
                if (key > least) memory.list.add(key);
                __syncthreads();
            }
        }
    }

    // Leaves only the best candidates in the list. Returns the last of them if there are enough.
    __device__ Key keep_best() const {
        Candidates& list = memory.list;
        const int count = rank(list, wanted, max(limit, 1));
        if (static_cast<int>(threadIdx.x) < count) list.key[threadIdx.x] = list.best[threadIdx.x];
        if (threadIdx.x == 0) list.count = count;
        const Key least = count == wanted ? list.best[wanted - 1] : Key{0, 0};
        __syncthreads();
        return least;
    }

    // Ranks the best `wanted` candidates; returns how many there are.
    __device__ int rank_candidates() const {
        bound_entries();
        if (!list_candidates()) list_best_of_all();
        return rank(memory.list, wanted, max(limit, 1));
    }

    __device__ Candidate candidate(const Key& key) const {
        const int i = key.parent();
        const Entry& entry = entry_of(i);
        if (is_single(i)) return {entry.score, 0.0f, i, key.token(), is_held(p, begin + i)};
        const float log_prob = (key.logit() - entry.peak) - entry.log_sum;
        return {entry.score + log_prob, log_prob, i, key.token(), false};
    }
};

// Ranks, finishes, prunes and writes the candidates of one beam.
template <class Logit, bool kIsWide, class Left>
__device__ void finish_beam(const SelectParams& p, const Left& left, const Span& span,
                            BeamMemory& memory) {
    const int number = span.beam;
    for (int i = threadIdx.x; i < kBins; i += kThreads) memory.bin[i] = 0;
    if (threadIdx.x == 0) {
        memory.list.count = memory.list.num_groups = 0;
        memory.bound = 0xffffffffu;
    }
    const Beam<Logit, Left, kIsWide> beam(p, left, span, memory);
    const bool has_nan = beam.combine_totals();
    const int count = has_nan || beam.wanted == 0 ? 0 : beam.rank_candidates();
    const bool has_own = static_cast<int>(threadIdx.x) < count;
    const Candidate own = has_own ? beam.candidate(memory.list.best[threadIdx.x]) : kNone;
    const Fate fate = finish(p, number, own, has_own, memory.numbers);
    const bool is_kept = passes(p, number, own, fate, memory.numbers);
    const auto [finished, kept] = block_ranks(fate.finishes, is_kept, memory.numbers);
    if (fate.finishes) write_survivor(p, number, finished.before, own);
    if (is_kept) write_survivor(p, number, finished.total + kept.before, own);
    const int num_survivors = finished.total + kept.total;
#pragma unroll 1
    for (int i = num_survivors + static_cast<int>(threadIdx.x); i < p.capacity; i += kThreads) {
        write_survivor(p, number, i, kNone);
    }
    if (threadIdx.x == 0) {
        p.count_out[number] = num_survivors;
        p.num_finished_out[number] = finished.total;
        p.has_nan_out[number] = has_nan;
    }
}

}  // namespace pybeam::cuda
