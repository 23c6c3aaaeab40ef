// Prefix scores of CTC for hypotheses of another model (Watanabe et al. 2017, algorithm 2).
#include <algorithm>
#include <numeric>

#include "../params/ctc.h"
#include "../scratch.h"
#include "ctc.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Weights below it are left out of sums of float32, and sums below `kLeastSum` are computed again
// as logarithms: what is lost is less than a millionth of others.
constexpr double kLeastWeight = 1e-37;
constexpr float kLeastSum = 1e-28f;

// log(sum(exp(x)))
double log_sum(const double* x, int64_t size) {
    double peak = -INFINITY;
    for (int64_t i = 0; i < size; ++i) peak = std::max(peak, x[i]);
    if (peak == -INFINITY) return peak;
    double sum = 0.0;
    for (int64_t i = 0; i < size; ++i) sum += std::exp(x[i] - peak);
    return peak + std::log(sum);
}

// A row of the decoder: its prefix g, and the frames of its source.
class PrefixRow {
  public:
    PrefixRow(const CtcPrefixParams& params, int64_t row)
        : p_(params),
          slot_(params.slot[row]),
          token_(params.token[row]),
          parent_token_(params.parent_token[row]),
          num_frames_(params.frames.length[slot_]),
          state_(of_cell(params.cell[row])),
          before_(params.parent_cell[row] < 0 ? nullptr : of_cell(params.parent_cell[row])),
          log_probs_(params.log_probs + row * params.row_stride) {}

    void run() {
        static thread_local Scratch<double> terms, totals;
        terms_ = terms.room(num_frames_ + 1);
        totals_ = totals.room(num_frames_ + 1);
        const double own = before_ == nullptr ? begin() : go_on();
        const float weight = p_.weight[slot_];
        if (weight == 0.0f) return;
        for (int64_t t = 0; t <= num_frames_; ++t) totals_[t] = log_add(said(t), silent(t));
        static thread_local Scratch<double> scores;
        score_ = scores.room(p_.frames.vocab_size);
        if (p_.pre_beam > 0) {
            score_best();
        } else {
            score_all();
        }
        score_[p_.frames.blank] = -INFINITY;
        for (int64_t i = 0; i < p_.num_eos; ++i) score_[p_.eos[i]] = totals_[num_frames_];
        mix(weight, own);
    }

  private:
    double* of_cell(int32_t cell) const { return p_.state + cell * 2 * (p_.frames.num_frames + 1); }
    // Log-probabilities of all paths of t frames that say g, by their last frame.
    double& said(int64_t t) { return state_[2 * t]; }
    double& silent(int64_t t) { return state_[2 * t + 1]; }
    const float* frame(int64_t t) const { return p_.frames.frame(slot_, t); }

    // Nothing has been said.
    double begin() {
        said(0) = -INFINITY;
        silent(0) = 0.0;
        for (int64_t t = 1; t <= num_frames_; ++t) {
            said(t) = -INFINITY;
            silent(t) = silent(t - 1) + frame(t - 1)[p_.frames.blank];
        }
        return 0.0;
    }

    // Follows the state of the parent; returns the prefix score of g.
    double go_on() {
        said(0) = silent(0) = -INFINITY;
        for (int64_t t = 1; t <= num_frames_; ++t) {
            const double* before = before_ + 2 * (t - 1);
            const double free = token_ == parent_token_ ? before[1] : log_add(before[0], before[1]);
            // no prefix has a blank
            const double x = token_ == p_.frames.blank ? -INFINITY : frame(t - 1)[token_];
            terms_[t - 1] = free + x;
            said(t) = log_add(said(t - 1), free) + x;
            silent(t) = log_add(said(t - 1), silent(t - 1)) + frame(t - 1)[p_.frames.blank];
        }
        return log_sum(terms_, num_frames_);
    }

    // The prefix score of g and one token more: the sum over the frames in which it may begin.
    double score(int64_t token) {
        const bool repeats = token == token_ && before_ != nullptr;
        for (int64_t t = 0; t < num_frames_; ++t) {
            terms_[t] = (repeats ? silent(t) : totals_[t]) + frame(t)[token];
        }
        return log_sum(terms_, num_frames_);
    }

    void score_best() {
        static thread_local Scratch<int32_t> tokens;
        const int64_t size = p_.frames.vocab_size;
        int32_t* order = tokens.room(size);
        std::iota(order, order + size, 0);
        const int64_t num = std::min(p_.pre_beam, size);
        std::nth_element(order, order + num - 1, order + size, [this](int32_t a, int32_t b) {
            return log_probs_[a] > log_probs_[b] || (log_probs_[a] == log_probs_[b] && a < b);
        });
        std::fill(score_, score_ + size, -INFINITY);
        for (int64_t i = 0; i < num; ++i) score_[order[i]] = score(order[i]);
    }

    void score_all() {
        static thread_local Scratch<float> sums;
        const int64_t size = p_.frames.vocab_size;
        float* sum = sums.room(size);
        std::fill(sum, sum + size, 0.0f);
        double peak = -INFINITY;
        for (int64_t t = 0; t < num_frames_; ++t) peak = std::max(peak, totals_[t]);
        const float* probs = p_.probs + slot_ * p_.frames.num_frames * size;
        for (int64_t t = 0; t < num_frames_; ++t) {
            const double weight = std::exp(totals_[t] - peak);
            if (!(weight > kLeastWeight)) continue;
            const auto w = static_cast<float>(weight);
            const float* y = probs + t * size;
            for (int64_t v = 0; v < size; ++v) sum[v] += w * y[v];
        }
        for (int64_t v = 0; v < size; ++v) {
            score_[v] = sum[v] > kLeastSum ? peak + std::log(sum[v]) : score(v);
        }
        if (before_ != nullptr) score_[token_] = score(token_);
    }

    // Tokens that the decoder forbids stay forbidden.
    void mix(float weight, double own) {
        for (int64_t v = 0; v < p_.frames.vocab_size; ++v) {
            if (log_probs_[v] == -INFINITY) continue;
            const double gain = score_[v] == -INFINITY ? -INFINITY : score_[v] - own;
            log_probs_[v] = static_cast<float>((1.0 - weight) * log_probs_[v] + weight * gain);
        }
    }

    const CtcPrefixParams& p_;
    int64_t slot_;
    int32_t token_, parent_token_;
    int64_t num_frames_;
    double* state_;
    const double* before_;  // of the parent; null: nothing has been said
    float* log_probs_;
    double *terms_ = nullptr, *totals_ = nullptr, *score_ = nullptr;
};

}  // namespace

void launch_ctc_prefix_scores(const CtcPrefixParams& p) {
    const int64_t work = p.num_rows * (p.frames.num_frames * 32 + p.frames.vocab_size * 32);
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        if (p.cell[row] >= 0) PrefixRow(p, row).run();
    });
}

}  // namespace pybeam
