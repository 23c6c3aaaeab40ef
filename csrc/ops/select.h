// The operator `select`: its arguments and results on any device, and the launch on a CPU.
#pragma once

#include <array>
#include <tuple>

#include "../params/select.h"
#include "check.h"

namespace pybeam {

using SelectResults = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Checked arguments, and memory for the results, all on the device of the logits. Values that serve
// as addresses are not checked here.
class SelectCall {
  public:
    SelectCall(const Tensor& logits, const Tensor& score, const Tensor& offset, const Tensor& width,
               const OptionalTensor& is_ended, const OptionalTensor& max_candidates,
               const OptionalTensor& margin, const OptionalTensor& local_margin,
               const OptionalTensor& best_finished, const OptionalTensor& forced,
               const OptionalTensor& ban_eos, IntList eos_ids, int64_t finishing, int64_t capacity,
               bool normalise)
        : num_entries(score.numel()),
          num_beams_(width.numel()),
          device_(logits.device()),
          score_("score", score, ScalarType::kFloat32, {num_entries}, device_),
          offset_("offset", offset, ScalarType::kInt32, {num_beams_ + 1}, device_),
          width_("width", width, ScalarType::kInt32, {num_beams_}, device_),
          is_ended_("is_ended", is_ended, ScalarType::kBool, {num_entries}, device_),
          max_candidates_("max_candidates", max_candidates, ScalarType::kInt32, {num_beams_},
                          device_),
          margin_("margin", margin, ScalarType::kFloat32, {num_beams_}, device_),
          local_margin_("local_margin", local_margin, ScalarType::kFloat32, {num_beams_}, device_),
          best_finished_("best_finished", best_finished, ScalarType::kFloat32, {num_beams_},
                         device_),
          forced_("forced", forced, ScalarType::kInt32, {num_beams_}, device_),
          ban_eos_("ban_eos", ban_eos, ScalarType::kBool, {num_beams_}, device_) {
        check_dim("logits", logits, 2);
        check_unit_stride("logits", logits);
        PYBEAM_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
        PYBEAM_CHECK_VALUE(logits.size(1) <= INT32_MAX, "`logits` has too many columns");
        params.logits = logits.data_ptr();
        params.dtype = float_type("logits", logits);
        params.row_stride = logits.stride(0);
        params.vocab_size = logits.size(1);
        params.score = score_;
        params.offset = offset_;
        params.width = width_;
        params.is_ended = is_ended_;
        params.max_candidates = max_candidates_;
        params.margin = margin_;
        params.local_margin = local_margin_;
        params.best_finished = best_finished_;
        params.forced = forced_;
        params.ban_eos = ban_eos_;
        params.eos = eos_of(eos_ids);
        params.finishing = finishing_of(finishing);
        params.normalise = normalise;
        params.num_rows = logits.size(0);
        params.num_beams = num_beams_;
        params.capacity = capacity;
        allocate();
    }

    SelectParams params{};
    int64_t num_entries;
    SelectResults results;

  private:
    void allocate() {
        const auto result = [this]<class T>(T*& pointer, ScalarType dtype, IntList shape) {
            Tensor tensor = empty(shape, dtype, device_);
            pointer = data<T>(tensor);
            return tensor;
        };
        const std::array<int64_t, 2> survivors{num_beams_, params.capacity};
        const std::array<int64_t, 1> beams{num_beams_};
        results = SelectResults{result(params.token_out, ScalarType::kInt32, survivors),
                                result(params.parent_out, ScalarType::kInt32, survivors),
                                result(params.score_out, ScalarType::kFloat32, survivors),
                                result(params.log_prob_out, ScalarType::kFloat32, survivors),
                                result(params.count_out, ScalarType::kInt32, beams),
                                result(params.num_finished_out, ScalarType::kInt32, beams),
                                result(params.has_nan_out, ScalarType::kBool, beams)};
    }

    int64_t num_beams_;
    Device device_;
    Argument<float> score_;
    Argument<int32_t> offset_, width_;
    Argument<bool> is_ended_;
    Argument<int32_t> max_candidates_;
    Argument<float> margin_, local_margin_, best_finished_;
    Argument<int32_t> forced_;
    Argument<bool> ban_eos_;
};

inline SelectResults select(const Tensor& logits, const Tensor& score, const Tensor& offset,
                            const Tensor& width, const OptionalTensor& is_ended,
                            const OptionalTensor& max_candidates, const OptionalTensor& margin,
                            const OptionalTensor& local_margin, const OptionalTensor& best_finished,
                            const OptionalTensor& forced, const OptionalTensor& ban_eos,
                            IntList eos_ids, int64_t finishing, int64_t capacity, bool normalise) {
    SelectCall call(logits, score, offset, width, is_ended, max_candidates, margin, local_margin,
                    best_finished, forced, ban_eos, eos_ids, finishing, capacity, normalise);
    SelectParams& params = call.params;
    const int32_t last = params.offset[params.num_beams];
    PYBEAM_CHECK_VALUE(last <= call.num_entries, "the last `offset` must be at most ",
                       call.num_entries, ", the number of entries, but is ", last);
    params.num_threads = num_threads();
    launch_select(params);
    return call.results;
}

}  // namespace pybeam
