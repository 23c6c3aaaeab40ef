// Arguments of the kernels about connectionist temporal classification (CTC).
#pragma once

#include <cstdint>

namespace pybeam {

// Log-probabilities [num_sources, num_frames, vocab_size] of the tokens in each frame. Nothing is
// read behind the first `length` frames of a source.
struct CtcFrames {
    const float* log_probs;
    int64_t source_stride, frame_stride;
    const int32_t* length;  // [num_sources]
    int64_t num_sources;
    int64_t num_frames;
    int64_t vocab_size;
    int32_t blank;

    const float* frame(int64_t source, int64_t t) const {
        return log_probs + source * source_stride + t * frame_stride;
    }
};

// Prefix beam search. `count` is `kCtcNotANumber` where a source holds NaN or +inf.
constexpr int32_t kCtcNotANumber = -1;

struct CtcBeamSearchParams {
    CtcFrames frames;
    int64_t width;
    int64_t n_best;
    int64_t max_tokens;  // new tokens of a frame at most
    double threshold;    // nats
    int32_t* tokens;     // [num_sources, n_best, num_frames]
    int32_t* length;     // [num_sources, n_best]
    double* log_prob;    // [num_sources, n_best]
    int32_t* count;      // [num_sources], hypotheses
    int num_threads;
};

void launch_ctc_beam_search(const CtcBeamSearchParams& params);

// The most probable path of given tokens. `total` is -inf where there is none, and NaN where a
// source holds NaN or +inf.
struct CtcAlignParams {
    CtcFrames frames;
    const int32_t* tokens;  // [num_sources, max_tokens]
    const int32_t* num_tokens;
    int64_t max_tokens;
    int32_t* spans;    // [num_sources, max_tokens, 2]: the first frame, and the one behind the last
    double* log_prob;  // [num_sources, max_tokens], the sum over the frames of each token
    double* total;     // [num_sources]
    int num_threads;
};

void launch_ctc_align(const CtcAlignParams& params);

// Mixes log-probabilities of rows with prefix scores, see `pybeam.ctc.prefix_scores`.
struct CtcPrefixParams {
    CtcFrames frames;     // of every slot
    const float* probs;   // exp(log_probs), contiguous; null if `pre_beam` is not 0
    const float* weight;  // [num_slots]
    double* state;        // [num_cells, num_frames + 1, 2]: r_n and r_b of every prefix
    int64_t num_cells;
    float* log_probs;  // [num_rows, vocab_size] of the decoder, which change
    int64_t row_stride;
    const int32_t* slot;          // [num_rows] each
    const int32_t* cell;          // -1: the row is padding
    const int32_t* parent_cell;   // -1: nothing has been said yet
    const int32_t* token;         // the last one of the row
    const int32_t* parent_token;  // the one before it; -1: there is none
    int64_t num_rows;
    const int32_t* eos;
    int64_t num_eos;
    int64_t pre_beam;  // tokens that are scored, the best of each row; 0: all
    int num_threads;
};

void launch_ctc_prefix_scores(const CtcPrefixParams& params);

}  // namespace pybeam
