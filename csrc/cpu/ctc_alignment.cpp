// The most probable path of CTC that says given tokens: Viterbi's algorithm.
#include <algorithm>
#include <vector>

#include "../params/ctc.h"
#include "ctc.h"
#include "parallel.h"

namespace pybeam {
namespace {

// States are places between and on the tokens: state 2 i + 1 says token i, and state 2 i is the
// blank before it. A frame stays in its state, or moves on by one, or from one token to the next if
// these differ. If paths are equal, the one that moves less in a frame is taken, from the end on.
class Alignment {
  public:
    Alignment(const CtcAlignParams& params, int64_t source)
        : params_(params),
          source_(source),
          tokens_(params.tokens + source * params.max_tokens),
          num_states_(2 * int64_t(params.num_tokens[source]) + 1),
          num_frames_(params.frames.length[source]),
          best_(num_states_, -INFINITY),
          moves_(num_states_ * num_frames_) {}

    double run() {
        // before the first frame: the states that begin lie one move away
        double before = 0.0;
        for (int64_t t = 0; t < num_frames_; ++t) {
            const float* frame = params_.frames.frame(source_, t);
            if (!are_log_probs(frame, params_.frames.vocab_size)) return NAN;
            step(frame, t, before);
            before = -INFINITY;
        }
        if (num_frames_ == 0) return num_states_ == 1 ? 0.0 : -INFINITY;
        int64_t state = num_states_ - 1;
        if (state > 0 && best_[state - 1] >= best_[state]) --state;
        const double total = best_[state];
        if (total > -INFINITY) trace(state);
        return total;
    }

  private:
    // `before` is the log-probability of having said nothing before the first frame.
    void step(const float* frame, int64_t t, double before) {
        uint8_t* move = moves_.data() + t * num_states_;
        // from the end on, so that states of the frame before are still there
        for (int64_t s = num_states_ - 1; s >= 0; --s) {
            double from = best_[s];
            move[s] = 0;
            const auto take = [&](double other, uint8_t by) {
                if (other > from) {
                    from = other;
                    move[s] = by;
                }
            };
            if (s <= 1) take(before, 0);
            if (s >= 1) take(best_[s - 1], 1);
            if (s >= 3 && s % 2 == 1 && tokens_[s / 2] != tokens_[s / 2 - 1]) take(best_[s - 2], 2);
            best_[s] = from + log_prob(frame, s);
        }
    }

    double log_prob(const float* frame, int64_t state) const {
        return frame[state % 2 == 1 ? tokens_[state / 2] : params_.frames.blank];
    }

    void trace(int64_t state) {
        const int64_t line = source_ * params_.max_tokens;
        int32_t* spans = params_.spans + 2 * line;
        double* sums = params_.log_prob + line;
        int64_t last = -1;
        for (int64_t t = num_frames_ - 1; t >= 0; --t) {
            if (state % 2 == 1) {
                const int64_t i = state / 2;
                if (i != last) {
                    spans[2 * i + 1] = static_cast<int32_t>(t + 1);
                    sums[i] = 0.0;
                    last = i;
                }
                spans[2 * i] = static_cast<int32_t>(t);
                sums[i] += log_prob(params_.frames.frame(source_, t), state);
            }
            state -= moves_[t * num_states_ + state];
        }
    }

    const CtcAlignParams& params_;
    int64_t source_;
    const int32_t* tokens_;
    int64_t num_states_, num_frames_;
    std::vector<double> best_;  // by state, of paths up to a frame
    std::vector<uint8_t>
        moves_;  // [num_frames, num_states], how far each state lies behind its last
};

}  // namespace

void launch_ctc_align(const CtcAlignParams& p) {
    const int64_t work = p.frames.num_sources * p.frames.num_frames * (2 * p.max_tokens + 1);
    parallel_for(threads_for(work, p.frames.num_sources, p.num_threads), p.frames.num_sources,
                 [&](int64_t source) { p.total[source] = Alignment(p, source).run(); });
}

}  // namespace pybeam
