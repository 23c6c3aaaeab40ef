// Which of the ranked candidates of a beam survive.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "select_params.cuh"

namespace pybeam::cuda {

struct Candidate {
    float score;  // -inf: there is none
    float log_prob;
    int32_t parent;
    int32_t token;
    bool is_held;
};

__device__ constexpr Candidate kNone{kMinusInfinity, kMinusInfinity, -1, -1, false};

// The fate of this thread's candidate.
struct Fate {
    bool finishes;
    bool goes_on;
};

__device__ inline Fate finish(const SelectParams& p, int64_t beam, const Candidate& own, bool valid,
                              WarpNumbers& numbers) {
    const int place = threadIdx.x;
    const bool ends = valid && p.eos.has(own.token), lives = valid && !ends;
    switch (p.finishing) {
        case Finishing::kNone:
            return {false, valid};
        case Finishing::kHeld: {
            const int run = block_reduce(lives ? place : kThreads, Min{}, numbers);
            return {valid && place < run, valid && place >= run};
        }
        case Finishing::kShrink:
            return {ends, lives};
        case Finishing::kRefill:
            break;
    }
    const int width = p.width[beam];
    const Rank rank = block_rank(lives, numbers);
    return {ends && place < width, lives && rank.before < width};
}

// Whether a number is less than the margin below the best. A negative margin keeps ties.
__device__ inline bool is_within(float value, float best, float margin) {
    const float floor = best - fabsf(margin);
    return value > floor || (value == floor && margin < 0);
}

// Whether this thread's candidate, which does not end, passes the thresholds.
__device__ inline bool passes(const SelectParams& p, int64_t beam, const Candidate& own, Fate fate,
                              WarpNumbers& numbers) {
    if (p.margin == nullptr && p.local_margin == nullptr) return fate.goes_on;
    const bool counts = fate.goes_on || (fate.finishes && p.finishing == Finishing::kHeld);
    float best = block_reduce(counts ? own.score : kMinusInfinity, Max{}, numbers);
    if (p.best_finished != nullptr) best = fmaxf(best, p.best_finished[beam]);
    const bool has_log_prob = fate.goes_on && !own.is_held;
    const float best_log_prob =
        block_reduce(has_log_prob ? own.log_prob : kMinusInfinity, Max{}, numbers);
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

}  // namespace pybeam::cuda
