// All that is done to beams: open, then in every step read, choose (or take) and commit, then
// close.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "../params/beams.h"
#include "../params/select.h"
#include "../scratch.h"
#include "beams.h"
#include "check.h"
#include "columns.h"
#include "edits.h"
#include "finished.h"
#include "tree.h"

namespace pybeam {

// All operations on beams, and `select`, for the same arrays in every call. The arrays are checked
// once, and what `select` reads and writes is no tensor, unless Python asks for it.
class BeamProgram {
  public:
    enum Row { kOffset, kToken, kPosition, kRowSlot, kEntry, kNode, kCell, kNumRowArrays };

    // The arrays must live as long as the program.
    BeamProgram(TensorList tree, TensorList beams, const BeamRules& rules)
        : tree_(tree_of(tree)), beams_(beams_of(beams)), rules_(rules) {
        check_same_slots(tree_, beams_);
    }

    virtual ~BeamProgram() = default;

    // Opens slots [A] with lines of numbers [A, kNumInts] and [A, kNumFloats].
    void open(const std::vector<int32_t>& slots, const std::vector<int32_t>& ints,
              const std::vector<float>& floats, int32_t start_id) {
        PYBEAM_CHECK_VALUE(ints.size() == slots.size() * Beams::kNumInts &&
                               floats.size() == slots.size() * Beams::kNumFloats,
                           "`ints` and `floats` must have a line per slot");
        BeamOpenParams params{};
        params.beams = beams_;
        params.tree = tree_;
        params.slot = slots.data();
        params.ints = ints.data();
        params.floats = floats.data();
        params.num_sources = static_cast<int64_t>(slots.size());
        params.start_id = start_id;
        open(params);
    }

    void close(const std::vector<int32_t>& slots) {
        BeamCloseParams params{};
        params.beams = beams_;
        params.release = {tree_, slots.data(), static_cast<int64_t>(slots.size())};
        launch_beam_close(params);
    }

    // See `write_finished`.
    template <class Room>
    void finished(const std::vector<int32_t>& slots, const std::vector<int32_t>& counts,
                  int64_t capacity, bool wants_log_probs, const Room& room) const {
        write_finished(tree_, beams_, slots, counts, capacity, wants_log_probs, room);
    }

    // Reads the rows of these slots into int32 arrays: the offsets [A + 1], all others [R].
    virtual void read(const Tensor& slot, int64_t num_rows,
                      const std::array<int32_t*, kNumRowArrays>& rows) {
        stage_ = Stage::kNone;
        const Argument<int32_t> given("slot", slot, ScalarType::kInt32, {slot.numel()});
        num_sources_ = slot.numel();
        const bool is_held = rules_.finishing == Finishing::kHeld;
        const int64_t num_entries = is_held ? num_sources_ * beams_.max_entries : num_rows;
        num_entries_ = num_entries;
        num_rows_ = num_rows;
        rows_ = rows;
        std::copy_n(static_cast<const int32_t*>(given), num_sources_, slot_.room(num_sources_));
        BeamReadParams params{};
        params.beams = beams_;
        params.token = tree_.token;
        params.row_node = tree_.row_node;
        params.row_cell = tree_.row_cell;
        params.max_nodes = tree_.max_nodes;
        params.slot = slot_.get();
        params.num_sources = num_sources_;
        params.refills = rules_.refills;
        params.num_rows = num_rows;
        params.num_entries = num_entries;
        params.row_offset_out = rows[kOffset];
        params.token_out = rows[kToken];
        params.position_out = rows[kPosition];
        params.row_slot_out = rows[kRowSlot];
        params.entry_out = rows[kEntry];
        params.node_out = rows[kNode];
        params.cell_out = rows[kCell];
        params.score_out = score_.room(num_entries);
        params.entry_offset_out = entry_offset_.room(num_sources_ + 1);
        params.is_ended_out = is_ended_.room(num_entries);
        params.width_out = width_.room(num_sources_);
        params.max_candidates_out = max_candidates_.room(num_sources_);
        params.margin_out = margin_.room(num_sources_);
        params.local_margin_out = local_margin_.room(num_sources_);
        params.best_finished_out = best_finished_.room(num_sources_);
        params.forced_out = forced_.room(num_sources_);
        params.ban_eos_out = ban_eos_.room(num_sources_);
        launch_beam_read(params);
        stage_ = Stage::kRead;
    }

    // Hands the inputs of `select`, of the beams that were read, to out(numbers, size), in the
    // order of `SelectInputs` in Python.
    template <class Out>
    void inputs(const Out& out) const {
        PYBEAM_CHECK(stage_ != Stage::kNone, "`inputs` needs a `read` before it");
        out(score_.get(), num_entries_);
        out(entry_offset_.get(), num_sources_ + 1);
        out(is_ended_.get(), num_entries_);
        out(width_.get(), num_sources_);
        out(max_candidates_.get(), num_sources_);
        out(margin_.get(), num_sources_);
        out(local_margin_.get(), num_sources_);
        out(best_finished_.get(), num_sources_);
        out(forced_.get(), num_sources_);
        out(ban_eos_.get(), num_sources_);
    }

    // Goes on with these survivors of slots [A], which somebody else has selected. Nothing changes.
    virtual void take(const Tensor& slot, TensorList arrays) {
        using A = SurvivorArrays;
        stage_ = Stage::kNone;
        const SurvivorArguments given(slot, arrays);
        const IntList sizes = arrays[A::kParent].sizes();
        const Argument<float> score("score", arrays[A::kScore], ScalarType::kFloat32, sizes);
        const Argument<bool> has_nan("has_nan", arrays[A::kHasNan], ScalarType::kBool,
                                     {given.num_sources});
        num_sources_ = given.num_sources;
        capacity_ = given.capacity;
        const int64_t num_survivors = num_sources_ * capacity_;
        copy(given.slot, slot_, num_sources_);
        copy(given.token, token_, num_survivors);
        copy(given.parent, parent_, num_survivors);
        copy(score, survivor_score_, num_survivors);
        copy(given.log_prob, log_prob_, num_survivors);
        copy(given.count, count_, num_sources_);
        copy(given.first, num_finished_, num_sources_);
        copy(has_nan, has_nan_, num_sources_);
        if (rules_.eos.count > 1) unite_eos(num_survivors);
        stage_ = Stage::kChosen;
    }

    // Selects the survivors of the beams that were read. Nothing changes. Logits are those of a
    // vocabulary, or of columns.
    void choose(const Tensor& logits, const ColumnTokens* columns = nullptr) {
        choose_by([&](SelectParams& params) {
            PYBEAM_CHECK_VALUE(logits.device() == Device{}, "`logits` must be on cpu, but is on ",
                               logits.device());
            check_dim("logits", logits, 2);
            check_unit_stride("logits", logits);
            PYBEAM_CHECK_VALUE(logits.size(1) <= INT32_MAX, "`logits` has too many columns");
            params.logits = logits.data_ptr();
            params.dtype = float_type("logits", logits);
            params.row_stride = logits.stride(0);
            params.vocab_size = logits.size(1);
            params.num_rows = logits.size(0);
            params.num_threads = num_threads();
            if (columns == nullptr) return launch_select(params);
            PYBEAM_CHECK_VALUE(columns->num_rows == params.num_rows,
                               "there must be a node for each of ", params.num_rows,
                               " rows, but there are ", columns->num_rows);
            column_select_.run(*columns, params, launch_select);
        });
    }

    // Selects among columns, made of logits that launch(params) computes. The arrays of the rows
    // that were read are still there.
    template <class Launch>
    void choose_by(StepColumns& columns, const Launch& launch) {
        choose_by([&](SelectParams& params) {
            walk(columns);
            params.columns = columns.params();
            column_select_.run(columns.tokens(), params, launch);
        });
    }

    // The same, where launch(params) launches `select`, and adds all that is about logits before.
    template <class Launch>
    void choose_by(const Launch& launch) {
        PYBEAM_CHECK(stage_ != Stage::kNone, "`choose` needs a `read` before it");
        stage_ = Stage::kRead;
        SelectParams params{};
        params.eos = rules_.eos;
        params.normalise = rules_.normalise;
        enter(params);
        capacity_ = params.capacity;
        const int64_t num_beams = params.num_beams, num_survivors = num_beams * capacity_;
        params.token_out = token_.room(num_survivors);
        params.parent_out = parent_.room(num_survivors);
        params.score_out = survivor_score_.room(num_survivors);
        params.log_prob_out = log_prob_.room(num_survivors);
        params.count_out = count_.room(num_beams);
        params.num_finished_out = num_finished_.room(num_beams);
        params.has_nan_out = has_nan_.room(num_beams);
        launch(params);
        if (rules_.eos.count > 1) unite_eos(num_survivors);
        stage_ = Stage::kChosen;
    }

    // The edits of the rows that were read, whose arrays are still there; null if there are none.
    const EditParams* of_rows(StepEdits& edits) const {
        const EditedRows rows{rows_[kRowSlot], rows_[kToken], rows_[kPosition], rows_[kNode],
                              num_rows_};
        return edits.of(rows, tree_, beams_, rules_.eos);
    }

    // Turns the survivors into the next beams.
    virtual void commit() {
        PYBEAM_CHECK(stage_ == Stage::kChosen, "`commit` needs a `choose` before it");
        stage_ = Stage::kNone;
        BeamCommitParams params{};
        params.beams = beams_;
        params.append.tree = tree_;
        params.append.slot = slot_.get();
        params.append.first = num_finished_.get();
        params.append.count = count_.get();
        params.append.survivor_parent = parent_.get();
        params.append.survivor_token = token_.get();
        params.append.survivor_log_prob = log_prob_.get();
        params.append.num_sources = num_sources_;
        params.append.capacity = capacity_;
        params.append.eos_id = rules_.eos.id[0];
        params.append.num_threads = num_threads();
        params.survivor_score = survivor_score_.get();
        params.eos_token = rules_.eos.count > 1 ? eos_token_.get() : nullptr;
        params.has_nan = has_nan_.get();
        params.finishing = rules_.finishing;
        params.stop = rules_.stop;
        params.source_out = source_.room(num_moves());
        params.target_out = target_.room(num_moves());
        launch_beam_commit(params);
    }

    int64_t num_slots() const { return beams_.num_slots; }

    // Rows of these slots in the next step; 0 if pages are missing. Leaves those that have not
    // stopped in `running`.
    int64_t next_rows(const Tensor& slot, std::vector<int32_t>* running) const {
        const Argument<int32_t> given("slot", slot, ScalarType::kInt32, {slot.numel()});
        const int64_t pages = (beams_.max_entries + kPageCells - 1) / kPageCells;
        int64_t num_rows = 0;
        running->clear();
        for (int64_t a = 0; a < slot.numel(); ++a) {
            const int64_t p = static_cast<const int32_t*>(given)[a];
            PYBEAM_CHECK(p >= 0 && p < beams_.num_slots, "`slot` is out of range");
            const int32_t* ints = beams_.ints + p * Beams::kNumInts;
            if (ints[Beams::kReason] != static_cast<int32_t>(StopReason::kRunning)) continue;
            running->push_back(static_cast<int32_t>(p));
            num_rows += ints[Beams::kNumRows];
        }
        const auto num_running = static_cast<int64_t>(running->size());
        return *tree_.num_free_pages < num_running * pages ? 0 : num_rows;
    }

    // Number of old entries that the last commit has moved, those that nobody continues included.
    virtual int64_t num_moves() const { return num_sources_ * beams_.max_entries; }
    const int32_t* source() const { return source_.get(); }
    const int32_t* target() const { return target_.get(); }

    // Writes the report [1 + (kWaited + 1) * A] on these slots; `BeamState.report` says what it is.
    void report(const Tensor& slot, int32_t* out) const {
        const Argument<int32_t> given("slot", slot, ScalarType::kInt32, {slot.numel()});
        *out++ = *tree_.num_free_pages;
        for (int64_t a = 0; a < slot.numel(); ++a) {
            const int64_t p = static_cast<const int32_t*>(given)[a];
            PYBEAM_CHECK(p >= 0 && p < beams_.num_slots, "`slot` is out of range");
            out = std::copy_n(beams_.ints + p * Beams::kNumInts, +Beams::kWaited, out);
            *out++ = tree_.num_pages[p];
        }
    }

    static int64_t report_size(const Tensor& slot) {
        return 1 + (Beams::kWaited + 1) * slot.numel();
    }

  protected:
    enum class Stage { kNone, kRead, kChosen };

    template <class T>
    static void copy(std::type_identity_t<const T*> given, Scratch<T>& own, int64_t size) {
        std::copy_n(given, size, own.room(size));
    }

    virtual void open(const BeamOpenParams& params) { launch_beam_open(params); }

    // Gives `select` the beams that were read.
    virtual void enter(SelectParams& params) {
        const bool is_held = rules_.finishing == Finishing::kHeld;
        params.score = score_.get();
        params.offset = entry_offset_.get();
        params.width = width_.get();
        params.is_ended = is_held ? is_ended_.get() : nullptr;
        params.max_candidates = max_candidates_.get();
        params.margin = margin_.get();
        params.local_margin = local_margin_.get();
        params.best_finished = is_held ? best_finished_.get() : nullptr;
        params.forced = forced_.get();
        params.ban_eos = ban_eos_.get();
        params.finishing = rules_.finishing;
        params.num_beams = num_sources_;
        params.capacity = beams_.max_entries * (rules_.finishing == Finishing::kRefill ? 2 : 1);
    }

    // Goes on to the states of the rows that were read.
    void walk(StepColumns& columns) const {
        AutomatonWalkParams params{};
        params.parent = tree_.parent;
        params.num_slots = tree_.num_slots;
        params.max_nodes = tree_.max_nodes;
        params.row_slot = rows_[kRowSlot];
        params.node = rows_[kNode];
        params.token = rows_[kToken];
        params.position = rows_[kPosition];
        params.prefix_length = beams_.ints + Beams::kPrefixLength;
        params.max_length = beams_.ints + Beams::kMaxLength;
        params.limit_stride = Beams::kNumInts;
        params.num_rows = num_rows_;
        columns.walk(params);
    }

    // Every EOS becomes the first one, and the original tokens are kept.
    void unite_eos(int64_t num_survivors) {
        int32_t* token = token_.get();
        std::copy_n(token, num_survivors, eos_token_.room(num_survivors));
        for (int64_t i = 0; i < num_survivors; ++i) {
            if (rules_.eos.has(token[i])) token[i] = rules_.eos.id[0];
        }
    }

    Tree tree_;
    Beams beams_;
    BeamRules rules_;
    Stage stage_ = Stage::kNone;
    int64_t num_sources_ = 0, num_rows_ = 0, num_entries_ = 0, capacity_ = 0;
    Scratch<int32_t> slot_;
    std::array<int32_t*, kNumRowArrays> rows_{};  // of the last `read`

    ColumnSelect column_select_;

    // what `select` reads, see `SelectInputs` in Python
    Scratch<float> score_;
    Scratch<int32_t> entry_offset_;
    Scratch<bool> is_ended_;
    Scratch<int32_t> width_, max_candidates_, forced_;
    Scratch<float> margin_, local_margin_, best_finished_;
    Scratch<bool> ban_eos_;

    // what `select` writes, see `Survivors` in Python
    Scratch<int32_t> token_, parent_, count_, num_finished_, eos_token_;
    Scratch<float> survivor_score_, log_prob_;
    Scratch<bool> has_nan_;

    Scratch<int32_t> source_, target_;
};

}  // namespace pybeam
