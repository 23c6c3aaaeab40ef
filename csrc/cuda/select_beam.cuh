// From the candidates of a beam's rows to its survivors.
#pragma once

#include <cstdint>

#include "best_keys.cuh"
#include "select_params.cuh"

namespace pybeam::cuda {

constexpr float kLeastFinite = -__FLT_MAX__;

struct Candidate {
    float score;  // -inf: there is none
    float log_prob;
    int32_t parent;
    int32_t token;
    bool is_held;
};

// The candidates of one beam, numbered by parent and rank within the parent.
template <class Logit, class Key>
struct Beam {
    const SelectParams& p;
    Scratch<Key> scratch;
    int64_t beam;
    int64_t begin;
    int num_entries;
    int limit;
    int per_entry;
    bool forced;

    __device__ Beam(const SelectParams& params, int64_t number)
        : p(params),
          scratch(params),
          beam(number),
          begin(params.offset[number]),
          num_entries(params.offset[number + 1] - params.offset[number]),
          limit(row_limit(params, number)),
          per_entry(max(limit, 1)),  // a held entry is a candidate whatever the limit
          forced(is_forced(params, number)) {}

    __device__ int num_candidates() const { return num_entries * per_entry; }

    __device__ bool has_nan() const {
        bool found = false;
        for (int i = threadIdx.x; i < num_entries; i += kThreads) {
            found |= !is_held(p, begin + i) && isnan(scratch.log_sum[begin + i]);
        }
        return __syncthreads_or(found);
    }

    __device__ Candidate candidate(int number) const {
        const int parent = number / per_entry;
        const int rank = number % per_entry;
        const int64_t entry = begin + parent;
        const float score = p.score[entry];
        const Candidate none{kMinusInfinity, kMinusInfinity, -1, -1, false};
        const bool held = is_held(p, entry);
        if (held || forced) {
            if (rank > 0) return none;
            return {score, 0.0f, parent, held ? p.eos.id[0] : p.forced[beam], held};
        }
        const Key key = rank < limit ? scratch.keys_of(entry, 0)[rank] : Key{0};
        if (key == 0) return none;
        const float logit = logit_of<Logit, Key>(key);
        const float log_prob = (logit - scratch.peak[entry]) - scratch.log_sum[entry];
        return {score + log_prob, log_prob, parent, token_of(key), false};
    }

    // A finite bound that the `wanted` best scores reach.
    __device__ float bound(int wanted) const {
        float best = kMinusInfinity;
        for (int i = threadIdx.x; i < num_candidates(); i += kThreads) {
            best = fmaxf(best, candidate(i).score);
        }
        return block_bound(best, wanted);
    }

    // The `wanted` best candidates, one per thread; returns their number.
    __device__ int rank(int wanted, BestKeys<uint64_t>& best, Candidate* own) const {
        const float least = num_candidates() > kThreads ? bound(wanted) : kLeastFinite;
        const auto key_of = [&](int i) {
            const float score = candidate(i).score;
            if (!(score >= least)) return uint64_t{0};
            return uint64_t{ordered_bits(score)} << 32 | (0xffffffffu - static_cast<uint32_t>(i));
        };
        const int count = collect_best(best, num_candidates(), wanted, key_of);
        if (static_cast<int>(threadIdx.x) < count) {
            *own = candidate(token_of(best.key[threadIdx.x]));
        }
        return count;
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
template <class Logit, class Key>
__device__ void finish_beam(const SelectParams& p, int64_t beam_number, BestKeys<uint64_t>& best) {
    const Beam<Logit, Key> beam(p, beam_number);
    const Candidate none{kMinusInfinity, kMinusInfinity, -1, -1, false};
    Candidate own = none;
    const bool has_nan = beam.has_nan();
    const int wanted = beam_limit(p, beam_number);
    const int count = has_nan || wanted <= 0 ? 0 : beam.rank(wanted, best, &own);
    const Fate fate = finish(p, beam_number, own, static_cast<int>(threadIdx.x) < count);
    const bool is_kept = passes(p, beam_number, own, fate);
    const Rank finished = block_rank(fate.finishes), kept = block_rank(is_kept);
    if (fate.finishes) write_survivor(p, beam_number, finished.before, own);
    if (is_kept) write_survivor(p, beam_number, finished.total + kept.before, own);
    const int num_survivors = finished.total + kept.total;
    for (int64_t i = num_survivors + threadIdx.x; i < p.capacity; i += kThreads) {
        write_survivor(p, beam_number, i, none);
    }
    if (threadIdx.x == 0) {
        p.count_out[beam_number] = num_survivors;
        p.num_finished_out[beam_number] = finished.total;
        p.has_nan_out[beam_number] = has_nan;
    }
}

}  // namespace pybeam::cuda
