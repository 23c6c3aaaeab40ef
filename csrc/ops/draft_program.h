// All that is done to sources that guess ahead. Each has one hypothesis, whose rows are its last
// token and the guesses behind it.
#pragma once

#include <algorithm>
#include <numeric>

#include "beam_program.h"
#include "drafts.h"

namespace pybeam {

// See `Backend.draft_program` in Python.
class DraftProgram : public BeamProgram {
  public:
    DraftProgram(TensorList tree, TensorList beams, const BeamRules& rules, TensorList drafts,
                 int64_t vocab_size)
        : BeamProgram(tree, beams, rules),
          drafts_(drafts_of(drafts, beams_)),
          vocab_size_(vocab_size) {
        check_masks(tree_);
    }

    void read(const Tensor& slot, int64_t num_rows,
              const std::array<int32_t*, kNumRowArrays>& rows) override {
        BeamProgram::read(slot, num_rows, rows);
        for (int64_t r = 0; r < num_rows; ++r) rows[kPosition][r] += rows[kEntry][r];
    }

    // The survivors are those of beams of one row, the rows of slots [A].
    void take(const Tensor& slot, TensorList arrays) override {
        stage_ = Stage::kNone;
        using A = SurvivorArrays;
        const Argument<int32_t> slots("slot", slot, ScalarType::kInt32, {slot.numel()});
        const int64_t num = checked_survivors(arrays)[A::kToken].size(0);
        const Argument<int32_t> token("token", arrays[A::kToken], ScalarType::kInt32, {num, 1});
        const Argument<float> log_prob("log_prob", arrays[A::kLogProb], ScalarType::kFloat32,
                                       {num, 1});
        const Argument<bool> has_nan("has_nan", arrays[A::kHasNan], ScalarType::kBool, {num});
        num_sources_ = slot.numel();
        num_rows_ = num;
        copy(slots, slot_, num_sources_);
        copy(token, token_, num);
        copy(log_prob, log_prob_, num);
        copy(has_nan, has_nan_, num);
        if (rules_.eos.count > 1) unite_eos(num);
        stage_ = Stage::kChosen;
    }

    void commit() override {
        PYBEAM_CHECK(stage_ == Stage::kChosen, "`commit` needs a `choose` before it");
        stage_ = Stage::kNone;
        DraftCommitParams params{};
        params.tree = tree_;
        params.beams = beams_;
        params.drafts = drafts_;
        params.slot = slot_.get();
        params.num_sources = num_sources_;
        params.token = token_.get();
        params.eos_token = rules_.eos.count > 1 ? eos_token_.get() : nullptr;
        params.log_prob = log_prob_.get();
        params.has_nan = has_nan_.get();
        params.num_rows = num_rows_;
        params.eos_id = rules_.eos.id[0];
        params.vocab_size = vocab_size_;
        launch_draft_commit(params);
    }

    int64_t num_moves() const override { return 0; }

  private:
    void open(const BeamOpenParams& params) override {
        launch_draft_open({params, drafts_, rules_.eos.id[0], vocab_size_});
    }

    // Gives `select` the rows that were read, each as a beam of one row and score 0.
    void enter(SelectParams& params) override {
        const int64_t num = num_rows_;
        float* score = score_.room(num);
        int32_t *offset = entry_offset_.room(num + 1), *width = width_.room(num);
        int32_t* forced = forced_.room(num);
        bool* ban_eos = ban_eos_.room(num);
        std::fill_n(score, num, 0.0f);
        std::iota(offset, offset + num + 1, 0);
        std::fill_n(width, num, 1);
        // rows behind those of the sources are padding
        std::fill_n(forced, num, -1);
        std::fill_n(ban_eos, num, false);
        int64_t row = 0;
        for (int64_t a = 0; a < num_sources_; ++a) {
            const int64_t slot = slot_.get()[a];
            const int32_t* ints = beams_.ints + slot * Beams::kNumInts;
            for (int32_t q = 0; q < ints[Beams::kNumRows]; ++q, ++row) {
                PYBEAM_CHECK(row < num, "there are fewer rows than before");
                const int32_t position = ints[Beams::kDepth] + q;
                if (position < std::min<int64_t>(ints[Beams::kScoredFrom], beams_.max_prefix)) {
                    forced[row] = beams_.prefix[slot * beams_.max_prefix + position];
                }
                ban_eos[row] = position - ints[Beams::kPrefixLength] < ints[Beams::kMinLength];
            }
        }
        params.score = score;
        params.offset = offset;
        params.width = width;
        params.forced = forced;
        params.ban_eos = ban_eos;
        params.finishing = Finishing::kNone;
        params.num_beams = num;
        params.capacity = 1;
    }

    Drafts drafts_;
    int64_t vocab_size_;
};

}  // namespace pybeam
