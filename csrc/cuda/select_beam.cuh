// From the rows of a beam to its survivors.
#pragma once

#include <cstdint>

#include "candidates.cuh"
#include "select_row.cuh"

namespace pybeam::cuda {

constexpr float kLeastFinite = -__FLT_MAX__;

struct Candidate {
    float score;  // -inf: there is none
    float log_prob;
    int32_t parent;
    int32_t token;
    bool is_held;
};

__device__ constexpr Candidate kNone{kMinusInfinity, kMinusInfinity, -1, -1, false};

// Each holds the largest score of some groups of a row, so that all of them stand for different
// candidates, and no row has more of them than it may have candidates.
constexpr int kBins = 2 * kThreads;

// Lives in shared memory.
struct BeamMemory {
    Candidates list;
    uint32_t bin[kBins];
    uint32_t group[kRoom];
    int num_groups;
};

// How many numbers of a bin are compared with a bound: one for each thread, or two.
__device__ inline int bins_in_use(int wanted) { return 4 * wanted <= kThreads ? kThreads : kBins; }

// The largest finite number that at least `wanted` of the bins reach, rounded down to bfloat16; the
// least finite number if fewer do.
__device__ inline float bin_bound(const uint32_t* bin, int num_bins, int wanted) {
    const uint32_t first = bin[threadIdx.x] >> 16;
    const uint32_t second = num_bins > kThreads ? bin[kThreads + threadIdx.x] >> 16 : 0;
    uint32_t bound = 0;
#pragma unroll 1
    for (uint32_t bit = 0x8000u; bit != 0; bit >>= 1) {
        int count = __syncthreads_count(first >= (bound | bit));
        if (num_bins > kThreads) count += __syncthreads_count(second >= (bound | bit));
        if (count >= wanted) bound |= bit;
    }
    const uint32_t least = 0x0080u;  // of a finite number
    return float_from_ordered(max(bound, least) << 16);
}

// The candidates of one beam. A block computes all of this together.
template <class Logit>
struct Beam {
    const SelectParams& p;
    BeamMemory& memory;
    Scratch scratch;
    int number;
    int begin;
    int num_entries;
    int wanted;
    int limit;
    int num_bins;
    int row_bins;
    bool forced;
    bool bans;

    __device__ Beam(const SelectParams& params, int beam, BeamMemory& shared)
        : p(params),
          memory(shared),
          scratch(params),
          number(beam),
          begin(params.offset[beam]),
          num_entries(params.offset[beam + 1] - params.offset[beam]),
          wanted(beam_limit(params, beam)),
          limit(row_limit(params, beam)),
          num_bins(bins_in_use(wanted)),
          row_bins(max(min(limit, num_bins / max(num_entries, 1)), 1)),
          forced(is_forced(params, beam)),
          bans(bans_eos(params, beam)) {}

    // Whether an entry has one candidate, whatever its logits.
    __device__ bool is_single(int i) const { return forced || is_held(p, begin + i); }

    __device__ float score_of(const Entry& entry, float logit) const {
        return entry.score + ((logit - entry.peak) - entry.log_sum);
    }

    // Puts together what the slices of every row have left. Returns whether a row has a NaN.
    __device__ bool combine_slices() const {
        constexpr int kLanes = 8;
        bool has_nan = false;
#pragma unroll 1
        for (int first = 0; first < num_entries; first += kThreads / kLanes) {
            const int i = first + static_cast<int>(threadIdx.x) / kLanes;
            const int lane = threadIdx.x % kLanes;
            const bool has_row = i < num_entries && !is_held(p, begin + i);
            Total total{kMinusInfinity, 0.0f};
            for (int slice = lane; has_row && slice < scratch.num_slices; slice += kLanes) {
                total = combine(total, scratch.total_of(begin + i, slice));
            }
            total = combine_lanes<kLanes>(total);
            has_nan |= has_row && isnan(total.sum);
            if (lane > 0 || i >= num_entries) continue;
            const bool has_tokens = has_row && !forced && limit > 0;
            Entry entry{p.score[begin + i], 0.0f, p.normalise ? logf(total.sum) : 0.0f, 0.0f};
            if (p.normalise) entry.peak = total.peak;
            if (!has_tokens) entry.log_sum = -kMinusInfinity;
            scratch.entry[begin + i] = entry;
        }
        return __syncthreads_or(has_nan);
    }

    __device__ int num_peaks() const { return num_entries * scratch.num_slices * kSlicePeaks; }

    // Calls use(i, entry, peaks) for all peaks of the beam.
    template <class Use>
    __device__ void for_each_peaks(Use use) const {
        const int per_entry = scratch.num_slices * kSlicePeaks;
        const Peaks* peaks = scratch.peaks_of(begin, 0);
        for_each_loaded(
            num_peaks(), [&](int i) { return peaks[i]; },
            [&](int i, const Peaks& own) { use(i, i / per_entry, own); });
    }

    // A bound for every entry that its candidates reach if they are among the best of the beam.
    __device__ void bound_entries() const {
        const int per_entry = scratch.num_slices * kSlicePeaks;
        const auto put = [&](int entry, int i, float score) {
            if (!(score >= kLeastFinite)) return;
            uint32_t* bin = memory.bin + ((entry * row_bins + i % row_bins) & (num_bins - 1));
            atomicMax(bin, ordered_bits(score));
        };
        // few bins take the largest peak of four groups
        const int num_peaks = row_bins <= per_entry ? 1 : 4;
        for_each_peaks([&](int i, int number, Peaks peaks) {
            const Entry entry = scratch.entry[begin + number];
            const int place = (i - number * per_entry) * num_peaks;
            if (num_peaks == 1) peaks.of[0] = peaks.largest();
#pragma unroll 1
            for (int j = 0; j < num_peaks; ++j) {
                put(number, place + j, score_of(entry, peaks.of[0]));
                peaks.drop_first();
            }
        });
        __syncthreads();
        const float bound = bin_bound(memory.bin, num_bins, wanted);
        // few bins: then each row keeps to its own limit
        const bool has_few =
            bound == kLeastFinite && row_bins == limit && num_entries * row_bins <= num_bins;
#pragma unroll 1
        for (int i = threadIdx.x; i < num_entries; i += kThreads) {
            uint32_t least = 0xffffffffu;
#pragma unroll 1
            for (int j = 0; has_few && j < row_bins; ++j) {
                least = min(least, memory.bin[i * row_bins + j]);
            }
            const float own = has_few ? float_from_ordered(least) : bound;
            scratch.entry[begin + i].bound = own >= kLeastFinite ? own : kLeastFinite;
        }
        __syncthreads();
    }

    // The only candidate of an entry.
    __device__ Key single(int i) const {
        const float score = p.score[begin + i];
        const bool held = is_held(p, begin + i);
        if (score == kMinusInfinity) return {0, 0};
        return Key::of(score, i, 0.0f, held ? p.eos.id[0] : p.forced[number]);
    }

    __device__ Row<Logit> row_of(int i) const { return Row<Logit>(p, scratch.row[begin + i]); }

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
        for_each_peaks([&](int i, int number, Peaks peaks) {
            const Entry entry = scratch.entry[begin + number];
            if (!(score_of(entry, peaks.largest()) >= entry.bound)) return;
#pragma unroll 1
            for (int j = 0; j < 4; ++j) {
                if (score_of(entry, peaks.of[0]) >= entry.bound) {
                    const int place = atomicAdd(&memory.num_groups, 1);
                    if (place < kRoom) memory.group[place] = 4 * i + j;
                }
                peaks.drop_first();
            }
        });
        __syncthreads();
        if (memory.num_groups > kRoom) return false;
        list_tokens();
        __syncthreads();
        return memory.list.count <= kRoom;
    }

    // Lists the tokens of the groups that are listed.
    __device__ void list_tokens() const {
        struct Place {
            int entry;
            int32_t vector;
        };
        const int per_group = 2 * p.plan.vectors;
        const auto place_of = [&](int i) {
            const uint32_t group = memory.group[i / per_group], own = i % per_group;
            const uint32_t slice = group / kGroups;
            const uint32_t thread = group % kGroups * 2 + own % 2;
            const uint32_t first = slice % scratch.num_slices * p.plan.vectors * kThreads;
            return Place{static_cast<int>(slice / scratch.num_slices),
                         static_cast<int32_t>(first + own / 2 * kThreads + thread)};
        };
        for_each_loaded(
            memory.num_groups * per_group,
            [&](int i) {
                const Place place = place_of(i);
                const Row<Logit> row = row_of(place.entry);
                if (place.vector >= row.num_vectors()) return Vector{};
                return load_vector(row.vectors() + place.vector);
            },
            [&](int i, Vector vector) {
                const Place place = place_of(i);
                const Entry entry = scratch.entry[begin + place.entry];
                if (!(score_of(entry, Logit::largest(vector)) >= entry.bound)) return;
                const Row<Logit> row = row_of(place.entry);
#pragma unroll 1
                for (int j = 0; j < kPerVector<Logit>; ++j) {
                    const int32_t token = row.token(place.vector, j);
                    const float logit = Logit::at(vector, 0);
                    const Key key = token_key(place.entry, entry, row, token, logit);
                    if (key.upper != 0) memory.list.add(key);
                    Logit::drop_first(vector);
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
            const Entry entry = scratch.entry[begin + i];
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
        const Entry entry = scratch.entry[begin + i];
        if (is_single(i)) return {entry.score, 0.0f, i, key.token(), is_held(p, begin + i)};
        const float log_prob = (key.logit() - entry.peak) - entry.log_sum;
        return {entry.score + log_prob, log_prob, i, key.token(), false};
    }
};

// The fate of this thread's candidate.
struct Fate {
    bool finishes;
    bool goes_on;
};

__device__ inline Fate finish(const SelectParams& p, int64_t beam, const Candidate& own,
                              bool valid) {
    const int place = threadIdx.x;
    const bool ends = valid && p.eos.has(own.token), lives = valid && !ends;
    switch (p.finishing) {
        case Finishing::kNone:
            return {false, valid};
        case Finishing::kHeld: {
            const int run = block_reduce(lives ? place : kThreads, Min{});
            return {valid && place < run, valid && place >= run};
        }
        case Finishing::kShrink:
            return {ends, lives};
        case Finishing::kRefill:
            break;
    }
    const int width = p.width[beam];
    const Rank rank = block_rank(lives);
    return {ends && place < width, lives && rank.before < width};
}

// Whether a number is less than the margin below the best. A negative margin keeps ties.
__device__ inline bool is_within(float value, float best, float margin) {
    const float floor = best - fabsf(margin);
    return value > floor || (value == floor && margin < 0);
}

// Whether this thread's candidate, which does not end, passes the thresholds.
__device__ inline bool passes(const SelectParams& p, int64_t beam, const Candidate& own,
                              Fate fate) {
    if (p.margin == nullptr && p.local_margin == nullptr) return fate.goes_on;
    const bool counts = fate.goes_on || (fate.finishes && p.finishing == Finishing::kHeld);
    float best = block_reduce(counts ? own.score : kMinusInfinity, Max{});
    if (p.best_finished != nullptr) best = fmaxf(best, p.best_finished[beam]);
    const bool has_log_prob = fate.goes_on && !own.is_held;
    const float best_log_prob = block_reduce(has_log_prob ? own.log_prob : kMinusInfinity, Max{});
    const float margin = p.margin == nullptr ? -kMinusInfinity : p.margin[beam];
    const float local_margin = p.local_margin == nullptr ? -kMinusInfinity : p.local_margin[beam];
    return fate.goes_on && is_within(own.score, best, margin) &&
           (own.is_held || is_within(own.log_prob, best_log_prob, local_margin));
}

__device__ inline void write_survivor(const SelectParams& p, int64_t beam, int64_t column,
                                      const Candidate& survivor) {
    if (column >= p.capacity) return;
    const int64_t i = beam * p.capacity + column;
    p.token_out[i] = survivor.token;
    p.parent_out[i] = survivor.parent;
    p.score_out[i] = survivor.score;
    p.log_prob_out[i] = survivor.log_prob;
}

// Ranks, finishes, prunes and writes the candidates of one beam.
template <class Logit>
__device__ void finish_beam(const SelectParams& p, int number, BeamMemory& memory) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) memory.bin[i] = 0;
    if (threadIdx.x == 0) memory.list.count = memory.num_groups = 0;
    const Beam<Logit> beam(p, number, memory);
    const bool has_nan = beam.combine_slices();
    const int count = has_nan || beam.wanted == 0 ? 0 : beam.rank_candidates();
    const bool has_own = static_cast<int>(threadIdx.x) < count;
    const Candidate own = has_own ? beam.candidate(memory.list.best[threadIdx.x]) : kNone;
    const Fate fate = finish(p, number, own, has_own);
    const bool is_kept = passes(p, number, own, fate);
    const Rank finished = block_rank(fate.finishes), kept = block_rank(is_kept);
    if (fate.finishes) write_survivor(p, number, finished.before, own);
    if (is_kept) write_survivor(p, number, finished.total + kept.before, own);
    const int num_survivors = finished.total + kept.total;
#pragma unroll 1
    for (int64_t i = num_survivors + threadIdx.x; i < p.capacity; i += kThreads) {
        write_survivor(p, number, i, kNone);
    }
    if (threadIdx.x == 0) {
        p.count_out[number] = num_survivors;
        p.num_finished_out[number] = finished.total;
        p.has_nan_out[number] = has_nan;
    }
}

}  // namespace pybeam::cuda
