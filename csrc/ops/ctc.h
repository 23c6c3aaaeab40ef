// The operators about CTC.
#pragma once

#include <tuple>
#include <vector>

#include "../params/ctc.h"
#include "check.h"

namespace pybeam {

inline CtcFrames ctc_frames(const Tensor& log_probs, const int32_t* length, int64_t blank) {
    check_dim("log_probs", log_probs, 3);
    check_tensor("log_probs", log_probs, ScalarType::kFloat32, log_probs.sizes());
    check_unit_stride("log_probs", log_probs);
    CtcFrames frames{};
    frames.log_probs = data<const float>(log_probs);
    frames.source_stride = log_probs.stride(0);
    frames.frame_stride = log_probs.stride(1);
    frames.length = length;
    frames.num_sources = log_probs.size(0);
    frames.num_frames = log_probs.size(1);
    frames.vocab_size = log_probs.size(2);
    frames.blank = static_cast<int32_t>(blank);
    PYBEAM_CHECK_VALUE(blank >= 0 && blank < frames.vocab_size, "`blank` must be 0 to ",
                       frames.vocab_size - 1, ", but is ", blank);
    return frames;
}

inline void check_length(const CtcFrames& frames, int64_t source) {
    const int32_t length = frames.length[source];
    PYBEAM_CHECK_VALUE(length >= 0 && length <= frames.num_frames, "a length must be 0 to ",
                       frames.num_frames, ", but is ", length);
}

inline CtcFrames checked_frames(const Tensor& log_probs, const int32_t* length, int64_t blank) {
    const CtcFrames frames = ctc_frames(log_probs, length, blank);
    for (int64_t i = 0; i < frames.num_sources; ++i) check_length(frames, i);
    return frames;
}

// Returns tokens, their numbers, log-probabilities, and how many hypotheses there are.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> ctc_beam_search(
    const Tensor& log_probs, const Tensor& length, int64_t blank, int64_t width, int64_t n_best,
    int64_t max_tokens, double threshold) {
    check_dim("log_probs", log_probs, 3);
    const Argument<int32_t> length_arg("length", length, ScalarType::kInt32, {log_probs.size(0)});
    PYBEAM_CHECK_VALUE(width >= 1 && n_best >= 1 && n_best <= width && max_tokens >= 0,
                       "there must be places in the beam, and n_best of them at most");
    CtcBeamSearchParams params{};
    params.frames = checked_frames(log_probs, length_arg, blank);
    PYBEAM_CHECK_VALUE(width * (params.frames.num_frames + 1) < INT32_MAX,
                       "`width` * frames must be less than 2**31");
    const int64_t num = params.frames.num_sources;
    const Tensor tokens = empty({num, n_best, params.frames.num_frames}, ScalarType::kInt32);
    const Tensor lengths = empty({num, n_best}, ScalarType::kInt32);
    const Tensor scores = empty({num, n_best}, ScalarType::kFloat64);
    const Tensor count = empty({num}, ScalarType::kInt32);
    params.width = width;
    params.n_best = n_best;
    params.max_tokens = max_tokens;
    params.threshold = threshold;
    params.tokens = data<int32_t>(tokens);
    params.length = data<int32_t>(lengths);
    params.log_prob = data<double>(scores);
    params.count = data<int32_t>(count);
    params.num_threads = num_threads();
    launch_ctc_beam_search(params);
    return {tokens, lengths, scores, count};
}

// Returns the frames of each token, the sum of its log-probabilities, and that of the whole path.
inline std::tuple<Tensor, Tensor, Tensor> ctc_align(const Tensor& log_probs, const Tensor& length,
                                                    const Tensor& tokens, const Tensor& num_tokens,
                                                    int64_t blank) {
    check_dim("log_probs", log_probs, 3);
    check_dim("tokens", tokens, 2);
    const int64_t num = log_probs.size(0), max_tokens = tokens.size(1);
    const Argument<int32_t> length_arg("length", length, ScalarType::kInt32, {num});
    const Argument<int32_t> tokens_arg("tokens", tokens, ScalarType::kInt32, {num, max_tokens});
    const Argument<int32_t> num_arg("num_tokens", num_tokens, ScalarType::kInt32, {num});
    CtcAlignParams params{};
    params.frames = checked_frames(log_probs, length_arg, blank);
    for (int64_t i = 0; i < num; ++i) {
        PYBEAM_CHECK_VALUE(num_arg[i] >= 0 && num_arg[i] <= max_tokens,
                           "`num_tokens` is out of range");
        for (int64_t j = 0; j < num_arg[i]; ++j) {
            const int32_t token = tokens_arg[i * max_tokens + j];
            PYBEAM_CHECK_VALUE(token >= 0 && token < params.frames.vocab_size && token != blank,
                               "tokens must be 0 to ", params.frames.vocab_size - 1,
                               " and not the blank, but one is ", token);
        }
    }
    const Tensor spans = empty({num, max_tokens, 2}, ScalarType::kInt32);
    const Tensor scores = empty({num, max_tokens}, ScalarType::kFloat64);
    const Tensor total = empty({num}, ScalarType::kFloat64);
    params.tokens = tokens_arg;
    params.num_tokens = num_arg;
    params.max_tokens = max_tokens;
    params.spans = data<int32_t>(spans);
    params.log_prob = data<double>(scores);
    params.total = data<double>(total);
    params.num_threads = num_threads();
    launch_ctc_align(params);
    return {spans, scores, total};
}

// `sources` are log-probs [S, T, V], lengths [S], weights [S], and exp(log-probs) unless there is a
// `pre_beam`. `rows` are slots, cells, cells of parents, tokens and tokens before these, [R] each.
inline void ctc_prefix_scores(const Tensor& log_probs, const Tensor& prefixes, TensorList sources,
                              TensorList rows, IntList eos_ids, int64_t blank, int64_t pre_beam) {
    check_size("sources", sources, pre_beam > 0 ? 3 : 4);
    check_size("rows", rows, 5);
    check_dim("sources", sources[0], 3);
    check_dim("log_probs", log_probs, 2);
    check_dim("prefixes", prefixes, 3);
    const int64_t num_slots = sources[0].size(0), num_rows = log_probs.size(0);
    const Argument<int32_t> length("length", sources[1], ScalarType::kInt32, {num_slots});
    const Argument<float> weight("weight", sources[2], ScalarType::kFloat32, {num_slots});
    CtcPrefixParams params{};
    params.frames = ctc_frames(sources[0], length, blank);
    const int64_t vocab_size = params.frames.vocab_size;
    if (pre_beam <= 0) {
        params.probs = state<const float>("probs", sources[3], ScalarType::kFloat32,
                                          {num_slots, params.frames.num_frames, vocab_size});
    }
    params.weight = weight;
    params.num_cells = prefixes.size(0);
    params.state = state<double>("prefixes", prefixes, ScalarType::kFloat64,
                                 {params.num_cells, params.frames.num_frames + 1, 2});
    check_tensor("log_probs", log_probs, ScalarType::kFloat32, {num_rows, vocab_size});
    check_unit_stride("log_probs", log_probs);
    params.log_probs = data<float>(log_probs);
    params.row_stride = log_probs.stride(0);
    std::vector<Argument<int32_t>> given;
    for (const Tensor& row : rows)
        given.emplace_back("rows", row, ScalarType::kInt32, IntList{num_rows});
    params.slot = given[0];
    params.cell = given[1];
    params.parent_cell = given[2];
    params.token = given[3];
    params.parent_token = given[4];
    params.num_rows = num_rows;
    for (int64_t i = 0; i < num_rows; ++i) {
        const bool is_known = params.slot[i] >= 0 && params.slot[i] < num_slots &&
                              params.cell[i] < params.num_cells &&
                              params.parent_cell[i] < params.num_cells;
        PYBEAM_CHECK_VALUE(is_known, "a slot or a cell of a row is out of range");
        // a parent whose state is not there would be read as an address
        const bool is_token =
            params.parent_cell[i] < 0 || (params.token[i] >= 0 && params.token[i] < vocab_size);
        PYBEAM_CHECK_VALUE(is_token, "a token of a row is out of range");
        // slots without a source hold anything
        if (params.cell[i] >= 0) check_length(params.frames, params.slot[i]);
    }
    std::vector<int32_t> eos;
    for (const int64_t id : eos_ids) {
        PYBEAM_CHECK_VALUE(id >= 0 && id < vocab_size, "an EOS id must be 0 to ", vocab_size - 1,
                           ", but is ", id);
        eos.push_back(static_cast<int32_t>(id));
    }
    params.eos = eos.data();
    params.num_eos = static_cast<int64_t>(eos.size());
    params.pre_beam = pre_beam;
    params.num_threads = num_threads();
    launch_ctc_prefix_scores(params);
}

}  // namespace pybeam
