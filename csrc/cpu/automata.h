// The columns of rows of logits, which may be written in any order, on any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "../params/automata.h"

namespace pybeam {

// The state that a token leads to; -1: there is none.
int32_t next_state(const Automata& automata, int64_t state, int32_t token);

class Columns {
  public:
    // Throws std::runtime_error before anything would be read or written out of bounds.
    explicit Columns(const AutomatonColumnsParams& params);

    // Whether every row has a layer of its columns alone, which rows of a slot share.
    bool has_layers() const { return p_.layer != nullptr; }
    const LinearWeights* layer_of(int64_t row) const { return p_.layer[row]; }
    // The first of the rows `row .. end` that has another layer than the first one, or `end`.
    int64_t end_of_layer(int64_t row, int64_t end) const {
        const auto* layer = p_.layer + row;
        return std::find_if(layer, p_.layer + end, [&](auto one) { return one != *layer; }) -
               p_.layer;
    }

    // Writes and returns the columns of a row, whose logits these are: [vocab_size], or those that
    // its layer computes.
    const float* write_row(int64_t row, const void* logits);

    // Throws std::runtime_error if a token was no column of the logits.
    void check() const;

  private:
    // Reads EOS and what may follow a node of a tree, or a state.
    void read_tree(int64_t row, const void* logits, float* values);
    void read_pool(int64_t row, const void* logits, float* values);
    // Writes the columns of a row whose edges are a run that all fits.
    void write_run(int64_t row, const float* logits, float* eos, float* tokens) const;
    bool is_open_run(int64_t row) const;
    float at(const void* logits, int64_t token);
    void normalise(const void* logits, std::vector<float>& values) const;
    void add_weights(int64_t row, float* values) const;

    const AutomatonColumnsParams& p_;
    std::vector<Edges> edges_;
    std::atomic<bool> has_strange_token_{false};
};

}  // namespace pybeam
