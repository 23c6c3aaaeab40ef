// The columns of automata in the steps of a program, and the choice among them.
#pragma once

#include <vector>

#include "../params/automata.h"
#include "../params/select.h"
#include "../scratch.h"
#include "automata.h"
#include "check.h"
#include "slot_outputs.h"

namespace pybeam {

// The columns of all steps of some slots, see `StepColumns` in Python.
class StepColumns {
  public:
    // A line of a slot is its filter, or the state where it starts, and `node` is where nodes of
    // token trees [slots, nodes] are, or all rows of a slot [slots]. Layers of columns are kept in
    // `outputs`.
    StepColumns(TensorList arrays, const Tensor& line, const Tensor& node, int64_t eos_id,
                bool eos_first, int64_t normalise, SlotOutputs* outputs)
        : outputs_(outputs) {
        const AutomataArguments own(arrays);
        moves_ = node.dim() == 2;
        if (!moves_) check_dim("node", node, 1);
        walk_.automata = own.automata;
        walk_.state = state<int32_t>("node", node, ScalarType::kInt32, node.sizes());
        walk_.num_slots = node.size(0);
        walk_.max_nodes = moves_ ? node.size(1) : 0;
        walk_.line = state<const int32_t>("line", line, ScalarType::kInt32, {walk_.num_slots});
        columns_.automata = own.automata;
        columns_.words = own.filters;
        columns_.num_filters = own.num_filters;
        columns_.num_words = own.num_words;
        columns_.dtype = DType::kFloat32;
        columns_.eos_id = eos_id;
        columns_.eos_first = eos_first;
        columns_.normalise = normalise_of(normalise);
    }

    // Lets these slots, the only ones from now on, compute their columns alone, where all rows of a
    // slot have the same, nobody sums over others, and this is less work for so many rows.
    void pack(const LinearWeights& output, const Tensor& slot, int64_t num_rows) {
        if (moves_ || columns_.normalise == Normalise::kVocabulary) return;
        is_packed_ = outputs_->pack(output, walk_.automata, walk_.state, walk_.num_slots,
                                    static_cast<int32_t>(columns_.eos_id), slot, num_rows);
    }

    // Finds the states of these rows, whose trees, places and limits are given.
    void walk(const AutomatonWalkParams& rows) {
        const int64_t num_rows = rows.num_rows;
        PYBEAM_CHECK_VALUE(
            rows.num_slots == walk_.num_slots && (!moves_ || rows.max_nodes == walk_.max_nodes),
            "`node` must have a number for each of ", rows.num_slots,
            " token trees, or for each of their nodes");
        int32_t *node = node_.room(num_rows), *line = line_.room(num_rows);
        const LinearWeights** layer = layer_.room(is_packed_ ? num_rows : 0);
        for (int64_t row = 0; row < num_rows; ++row) {
            const int64_t slot = rows.row_slot[row];
            PYBEAM_CHECK(slot >= 0 && slot < walk_.num_slots, "`slot` is out of range");
            if (!moves_) node[row] = walk_.state[slot];
            if (!moves_) line[row] = walk_.line[slot];
            if (is_packed_) layer[row] = outputs_->of(slot);
        }
        AutomatonWalkParams walk = rows;
        walk.automata = walk_.automata;
        walk.state = walk_.state;
        walk.line = walk_.line;
        walk.out = node;
        walk.line_out = line;
        if (moves_) launch_automaton_walk(walk);
        columns_.node = node;
        columns_.line = line;
        columns_.layer = is_packed_ ? layer : nullptr;
        columns_.num_rows = num_rows;
        columns_.num_columns = most_edges(columns_.automata, node, num_rows) + 1;
        columns_.out = out_.room(num_rows * columns_.num_columns);
    }

    // The call that makes them of the logits of the rows.
    AutomatonColumnsParams* params() { return &columns_; }

    ColumnTokens tokens() const {
        return {columns_.automata,
                columns_.node,
                columns_.num_rows,
                columns_.num_columns,
                static_cast<int32_t>(columns_.eos_id),
                columns_.eos_first};
    }

  private:
    AutomatonWalkParams walk_{};
    bool moves_;  // else rows of a slot stay at its node
    AutomatonColumnsParams columns_{};
    SlotOutputs* outputs_;
    bool is_packed_ = false;
    Scratch<int32_t> node_, line_;         // per row
    Scratch<const LinearWeights*> layer_;  // per row
    Scratch<float> out_;
};

// `select` among columns in place of tokens.
class ColumnSelect {
  public:
    // Survivors have the tokens of the columns among which launch(params) has selected.
    template <class Launch>
    void run(const ColumnTokens& columns, SelectParams& params, const Launch& launch) {
        const int32_t* forced = params.forced;
        params.eos = eos_of({columns.eos_column()});
        int32_t* forced_column = forced_column_.room(params.num_beams);
        for (int64_t a = 0; a < params.num_beams; ++a) {
            forced_column[a] = forced[a] < 0 ? -1 : columns.other_column();
        }
        params.forced = forced_column;
        launch(params);
        name_tokens(columns, params, forced);
    }

  private:
    void name_tokens(const ColumnTokens& columns, const SelectParams& params,
                     const int32_t* forced) {
        int64_t row = 0;
        for (int64_t a = 0; a < params.num_beams; ++a) {
            row_of_.clear();
            for (int32_t entry = params.offset[a]; entry < params.offset[a + 1]; ++entry) {
                const bool is_held = params.is_ended != nullptr && params.is_ended[entry];
                row_of_.push_back(is_held ? -1 : row++);
            }
            for (int64_t i = a * params.capacity; i < (a + 1) * params.capacity; ++i) {
                int32_t& token = params.token_out[i];
                if (token < 0) continue;
                token = forced[a] >= 0 ? forced[a]
                                       : columns.token(row_of_[params.parent_out[i]], token);
            }
        }
    }

    Scratch<int32_t> forced_column_;
    std::vector<int64_t> row_of_;  // of the entries of a beam
};

}  // namespace pybeam
