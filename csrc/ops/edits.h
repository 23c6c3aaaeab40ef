// The operator `edit_logits`, and the edits of steps that follow one another.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "../params/automata.h"
#include "../params/beams.h"
#include "../params/edits.h"
#include "../scratch.h"
#include "automata.h"
#include "check.h"

namespace pybeam {

// Edits, one after another, whose arrays have been checked.
class EditList {
  public:
    // A rule is an `Edit` of Python and its two numbers. Arrays have a line for each slot at least,
    // and stand in the order of the rules.
    EditList(IntList rules, TensorList arrays, const Tensor& prompt, int64_t num_slots)
        : arrays_(arrays), num_slots_(num_slots) {
        constexpr int64_t kWords = 3;
        PYBEAM_CHECK_VALUE(rules.size() % kWords == 0, "`rules` must have ", kWords,
                           " numbers for each edit, but has ", rules.size());
        for (int64_t i = 0; i < rules.size(); i += kWords) {
            edits_.push_back(
                edit_of(int32_of(rules[i]), int32_of(rules[i + 1]), int32_of(rules[i + 2])));
        }
        PYBEAM_CHECK_VALUE(arrays_.empty(),
                           "`arrays` must have as many tensors as the edits need, "
                           "but has ",
                           arrays_.size(), " more");
        check_dim("prompt", prompt, 2);
        prompt_size_ = prompt.size(1);
        if (prompt_size_ > 0) prompt_ = ints(checked("prompt", prompt, 2));
    }

    bool empty() const { return edits_.empty(); }
    bool reads_history() const {
        return std::any_of(edits_.begin(), edits_.end(),
                           [](const Edit& edit) { return edit.reads_history(); });
    }

    // The automata of `kAutomaton`, and where rows are in them; all but what is about rows.
    const std::vector<AutomatonWalkParams>& walks() const { return walks_; }

    // All but what is about rows, and about limits of slots. The automata of rows are given.
    EditParams params(const AutomatonLogitsParams* automata = nullptr) {
        for (Edit& edit : edits_) {
            if (edit.kind == EditKind::kAutomaton) edit.automaton = automata++;
        }
        EditParams params{};
        params.edits = edits_.data();
        params.num_edits = static_cast<int64_t>(edits_.size());
        params.prompt = prompt_;
        params.prompt_size = prompt_size_;
        return params;
    }

  private:
    static int32_t int32_of(int64_t number) {
        PYBEAM_CHECK_VALUE(number == static_cast<int32_t>(number), number,
                           " does not fit in int32");
        return static_cast<int32_t>(number);
    }

    Edit edit_of(int32_t kind, int32_t number, int32_t other) {
        Edit edit{};
        edit.kind = static_cast<EditKind>(kind);
        edit.number = number;
        edit.other = other;
        switch (edit.kind) {
            case EditKind::kLastToken:
            case EditKind::kLogSoftmax:
                return edit;
            case EditKind::kNgram:
                PYBEAM_CHECK_VALUE(other > 0, "an n-gram must have a token, but has ", other);
                return edit;
            case EditKind::kRepetition:
            case EditKind::kEosPenalty:
            case EditKind::kTokenPenalty:
                edit.floats = floats(next(1));
                return edit;
            case EditKind::kMinLength:
            case EditKind::kFirstToken:
            case EditKind::kMarks:
                edit.ints = ints(next(1));
                return edit;
            case EditKind::kBiasedPrefix: {
                const Tensor& logs = next(2);
                PYBEAM_CHECK_VALUE(logs.size(1) == 2, "a biased prefix must have two numbers");
                edit.floats = floats(logs);
                [[fallthrough]];
            }
            case EditKind::kTokens: {
                const Tensor& tokens = next(2);
                edit.size = tokens.size(1);
                edit.ints = ints(tokens);
                return edit;
            }
            case EditKind::kSequences: {
                const Tensor& sequences = next(3);
                edit.size = sequences.numel() == 0 ? 0 : sequences.size(1);
                edit.longest = sequences.size(2);
                edit.ints = ints(sequences);
                edit.count = ints(next(1));
                return edit;
            }
            case EditKind::kCounts:
                edit.floats = floats(next(1));
                edit.more_floats = floats(next(1));
                return edit;
            case EditKind::kSequenceBias: {
                const Tensor &sequences = next(3), &biases = next(2);
                PYBEAM_CHECK_VALUE(biases.size(1) == sequences.size(1),
                                   "there must be a bias for each of ", sequences.size(1),
                                   " sequences, but there are ", biases.size(1));
                edit.size = sequences.numel() == 0 ? 0 : sequences.size(1);
                edit.longest = sequences.size(2);
                edit.ints = ints(sequences);
                edit.floats = floats(biases);
                return edit;
            }
            case EditKind::kRecord: {
                const Tensor &given = next(2), &record = taken();
                edit.size = given.size(1);
                edit.ints = ints(given);
                check_dim("arrays", record, 2);
                edit.num_records = record.size(0);
                PYBEAM_CHECK_VALUE(record.size(1) == edit.size - kRecordTokens,
                                   "a record must have a number for each of ",
                                   edit.size - kRecordTokens, " tokens, but has ", record.size(1));
                edit.record = state<float>("arrays", record, ScalarType::kFloat32, record.sizes());
                return edit;
            }
            case EditKind::kAutomaton:
                take_automaton();
                return edit;
        }
        fail<std::invalid_argument>("an edit must be one of `Edit`, but is ", kind);
    }

    void take_automaton() {
        constexpr size_t kArrays = 4;
        PYBEAM_CHECK_VALUE(arrays_.size() >= kArrays, "`arrays` must have those of a pool");
        const AutomataArguments own(arrays_.first(kArrays));
        arrays_ = arrays_.subspan(kArrays);
        AutomatonWalkParams walk{};
        walk.automata = own.automata;
        walk.line = ints(next(1));
        const Tensor& states = next(2);
        walk.num_slots = states.size(0);
        walk.max_nodes = states.size(1);
        walk.state = state<int32_t>("arrays", states, ScalarType::kInt32, states.sizes());
        walks_.push_back(walk);
    }

    const Tensor& next(int64_t dim) { return checked("arrays", taken(), dim); }

    const Tensor& taken() {
        PYBEAM_CHECK_VALUE(!arrays_.empty(), "`arrays` has fewer tensors than the edits need");
        const Tensor& array = arrays_.front();
        arrays_ = arrays_.subspan(1);
        return array;
    }

    const Tensor& checked(const char* name, const Tensor& array, int64_t dim) const {
        check_dim(name, array, dim);
        PYBEAM_CHECK_VALUE(array.size(0) >= num_slots_, "`", name,
                           "` must have a line for each of ", num_slots_, " slots, but has ",
                           array.size(0));
        return array;
    }

    static const float* floats(const Tensor& array) {
        return state<const float>("arrays", array, ScalarType::kFloat32, array.sizes());
    }

    static const int32_t* ints(const Tensor& array) {
        return state<const int32_t>("arrays", array, ScalarType::kInt32, array.sizes());
    }

    std::vector<Edit> edits_;
    std::vector<AutomatonWalkParams> walks_;
    TensorList arrays_;  // of edits that come
    int64_t num_slots_;
    const int32_t* prompt_ = nullptr;
    int64_t prompt_size_;
};

// The rows of a step, each with its node in the tree of its slot.
struct EditedRows {
    const int32_t* slot;
    const int32_t* token;
    const int32_t* position;
    const int32_t* node;
    int64_t num;
};

// Edits in all steps of some beams.
class StepEdits {
  public:
    explicit StepEdits(EditList list) : list_(std::move(list)) {}

    bool empty() const { return list_.empty(); }

    // The edits of these rows, until the next call; null if there are none.
    const EditParams* of(const EditedRows& rows, const Tree& tree, const Beams& beams,
                         const EosIds& eos) {
        if (list_.empty()) return nullptr;
        automata_.resize(list_.walks().size());
        params_ = list_.params(automata_.data());
        params_.slot = rows.slot;
        params_.position = rows.position;
        params_.prefix_length = beams.ints + Beams::kPrefixLength;
        params_.max_length = beams.ints + Beams::kMaxLength;
        params_.limit_stride = Beams::kNumInts;
        params_.eos = eos;
        if (list_.reads_history() && rows.num > 0) read_history(rows, tree);
        if (!automata_.empty()) walk(rows, tree);
        return &params_;
    }

  private:
    // Finds the states of the rows.
    void walk(const EditedRows& rows, const Tree& tree) {
        int32_t* out = states_.room(2 * rows.num * std::ssize(automata_));
        for (size_t i = 0; i < automata_.size(); ++i, out += 2 * rows.num) {
            AutomatonWalkParams walk = list_.walks()[i];
            PYBEAM_CHECK(walk.num_slots == tree.num_slots && walk.max_nodes == tree.max_nodes,
                         "states must have a place for each node of the token trees");
            walk.parent = tree.parent;
            walk.row_slot = rows.slot;
            walk.node = rows.node;
            walk.token = rows.token;
            walk.position = rows.position;
            walk.prefix_length = params_.prefix_length;
            walk.max_length = params_.max_length;
            walk.limit_stride = params_.limit_stride;
            walk.num_rows = rows.num;
            walk.out = out;
            walk.line_out = out + rows.num;
            launch_automaton_walk(walk);
            AutomatonLogitsParams& own = automata_[i];
            own.automata = walk.automata;
            own.node = walk.out;
            own.line = walk.line_out;
            own.num_rows = rows.num;
            own.eos = params_.eos;
            check_states(own);
        }
    }

    void read_history(const EditedRows& rows, const Tree& tree) {
        params_.history_size = *std::max_element(rows.position, rows.position + rows.num) + 1;
        BacktraceParams params{};
        params.token = tree.token;
        params.parent = tree.parent;
        params.slot = rows.slot;
        params.node = rows.node;
        params.num_slots = tree.num_slots;
        params.max_nodes = tree.max_nodes;
        params.num_hypotheses = rows.num;
        params.capacity = params_.history_size;
        params.tokens_out = history_.room(rows.num * params_.history_size);
        params.length_out = length_.room(rows.num);
        launch_backtrace(params);
        params_.history = params.tokens_out;
    }

    EditList list_;
    EditParams params_{};
    Scratch<int32_t> history_, length_, states_;
    std::vector<AutomatonLogitsParams> automata_;
};

// See `Edits` in Python. History [rows, tokens] is read where an edit needs it.
inline void edit_logits(const Tensor& logits, IntList rules, TensorList arrays,
                        const Tensor& history, const Tensor& prompt, const Tensor& slot,
                        const Tensor& position, const Tensor& prefix_length,
                        const Tensor& max_length, IntList eos_ids) {
    check_dim("logits", logits, 2);
    PYBEAM_CHECK_VALUE(float_type("logits", logits) == DType::kFloat32,
                       "`logits` must be float32, but is ", logits.scalar_type());
    check_dim("prefix_length", prefix_length, 1);
    const int64_t num_rows = logits.size(0), num_slots = prefix_length.size(0);
    EditList edits(rules, arrays, prompt, num_slots);
    PYBEAM_CHECK_VALUE(edits.walks().empty(), "`rules` must have no automaton");
    check_dim("history", history, 2);
    const int64_t history_size = history.size(1);
    const Argument<int32_t> history_arg("history", history, ScalarType::kInt32,
                                        {num_rows, history_size});
    const Argument<int32_t> slot_arg("slot", slot, ScalarType::kInt32, {num_rows});
    const Argument<int32_t> position_arg("position", position, ScalarType::kInt32, {num_rows});
    const Argument<int32_t> prefix_arg("prefix_length", prefix_length, ScalarType::kInt32,
                                       {num_slots});
    const Argument<int32_t> limit_arg("max_length", max_length, ScalarType::kInt32, {num_slots});
    for (int64_t row = 0; row < num_rows; ++row) {
        PYBEAM_CHECK(slot_arg[row] >= 0 && slot_arg[row] < num_slots, "`slot` is out of range");
        PYBEAM_CHECK(
            !edits.reads_history() || (position_arg[row] >= 0 && position_arg[row] < history_size),
            "`history` must have the tokens up to `position`");
    }
    EditParams params = edits.params();
    params.slot = slot_arg;
    params.position = position_arg;
    params.history = history_arg;
    params.history_size = history_size;
    params.prefix_length = prefix_arg;
    params.max_length = limit_arg;
    params.limit_stride = 1;
    params.eos = eos_of(eos_ids);
    launch_edit_logits(
        params, {state<float>("logits", logits, ScalarType::kFloat32, logits.sizes()), num_rows,
                 logits.size(1), num_threads()});
}

}  // namespace pybeam
