#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace pybeam {
namespace {

// Whether a number is less than the margin below the best. A negative margin keeps ties.
bool is_within(float value, float best, float margin) {
    const float floor = best - std::fabs(margin);
    return value > floor || (value == floor && margin < 0);
}

// Splits the ranked candidates into those that finish now and the next beam, in place. Returns how
// many finish.
int64_t finish(const SelectParams& p, int64_t width, std::vector<Candidate>* candidates) {
    const auto begin = candidates->begin(), end = candidates->end();
    const auto has_ended = [&p](const Candidate& candidate) { return p.eos.has(candidate.token); };
    switch (p.finishing) {
        case Finishing::kNone:
            return 0;
        case Finishing::kHeld:
            return std::find_if_not(begin, end, has_ended) - begin;
        case Finishing::kShrink:
            return std::stable_partition(begin, end, has_ended) - begin;
        case Finishing::kRefill:
            break;
    }
    const auto within = begin + std::min<int64_t>(width, candidates->size());
    candidates->erase(std::remove_if(within, end, has_ended), end);
    const int64_t finished = std::stable_partition(begin, within, has_ended) - begin;
    if (static_cast<int64_t>(candidates->size()) > finished + width) {
        candidates->resize(finished + width);
    }
    return finished;
}

void write(const SelectParams& p, int64_t beam, int64_t column, const Candidate& candidate) {
    if (column >= p.capacity) return;
    const int64_t i = beam * p.capacity + column;
    p.token_out[i] = candidate.token;
    p.parent_out[i] = candidate.parent;
    p.score_out[i] = candidate.score;
    p.log_prob_out[i] = candidate.log_prob;
}

}  // namespace

void rank(int64_t wanted, std::vector<Key>* order, std::vector<Candidate>* candidates) {
    order->clear();
    for (size_t i = 0; i < candidates->size(); ++i) {
        const float score = (*candidates)[i].score;
        if (score > -INFINITY) order->emplace_back(score, static_cast<int64_t>(i));
    }
    const int64_t count = std::min<int64_t>(wanted, order->size());
    std::nth_element(order->begin(), order->begin() + count, order->end(), std::greater<>());
    std::sort(order->begin(), order->begin() + count, std::greater<>());
    static thread_local std::vector<Candidate> ranked;
    ranked.clear();
    for (int64_t i = 0; i < count; ++i) ranked.push_back((*candidates)[(*order)[i].index()]);
    candidates->swap(ranked);
}

void write_survivors(const SelectParams& p, int64_t beam, std::vector<Candidate>* candidates) {
    const int64_t finished = finish(p, p.width[beam], candidates);
    float best = p.best_finished == nullptr ? -INFINITY : p.best_finished[beam];
    if (!candidates->empty() && p.finishing == Finishing::kHeld) {
        best = std::max(best, candidates->front().score);
    }
    float best_log_prob = -INFINITY;
    for (size_t i = finished; i < candidates->size(); ++i) {
        const Candidate& candidate = (*candidates)[i];
        best = std::max(best, candidate.score);
        if (!candidate.is_held) best_log_prob = std::max(best_log_prob, candidate.log_prob);
    }
    const float margin = p.margin == nullptr ? INFINITY : p.margin[beam];
    const float local_margin = p.local_margin == nullptr ? INFINITY : p.local_margin[beam];
    int64_t count = 0;
    for (size_t i = 0; i < candidates->size(); ++i) {
        const Candidate& candidate = (*candidates)[i];
        const bool is_kept =
            static_cast<int64_t>(i) < finished ||
            (is_within(candidate.score, best, margin) &&
             (candidate.is_held || is_within(candidate.log_prob, best_log_prob, local_margin)));
        if (is_kept) write(p, beam, count++, candidate);
    }
    p.count_out[beam] = static_cast<int32_t>(count);
    p.num_finished_out[beam] = static_cast<int32_t>(finished);
    for (; count < p.capacity; ++count) {
        write(p, beam, count, {-INFINITY, -INFINITY, -1, -1, false});
    }
}

}  // namespace pybeam
