// `select` in two steps, so that logits may come a few rows at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "../dispatch.h"
#include "../params/select.h"

namespace pybeam {

// Neighbouring beams, and their rows of logits.
struct BeamTile {
    int64_t first_beam, last_beam, first_row, last_row;

    int64_t num_rows() const { return last_row - first_row; }
};

// First every row of a beam is read, then the beam is finished, while the memory of its rows is as
// it was. Rows and beams may come in any order, on any thread. None depends on the others.
class Selection {
  public:
    // Throws std::runtime_error before anything would be read or written out of bounds.
    explicit Selection(const SelectParams& params);

    // Rows behind these are padding.
    int64_t num_rows() const { return num_rows_; }

    // Divides the beams into tiles of at most so many rows, where no beam alone has more.
    std::vector<BeamTile> tiles(int64_t most_rows) const;

    // Reads the logits [vocab_size] of a row.
    void read_row(int64_t row, const void* logits);
    void finish_beam(int64_t beam) const;

    // Throws std::runtime_error if a beam had more survivors than there was room for.
    void check_counts() const;

  private:
    struct BeamScratch;

    // The result of reading a row.
    struct Row {
        float peak;     // is subtracted from the logits
        float log_sum;  // so is this
        float largest;  // at least the largest logit that is no banned one
        bool has_nan;
        const void* logits;
        const float* groups;  // their maxima

        // The score of a token, as the filter of `collect_row` computes it.
        float score(float own, float logit) const { return own + ((logit - peak) - log_sum); }
    };

    void find_rows();
    const EosIds* banned(int64_t beam) const;
    float best_score(int64_t entry) const;
    void collect(int64_t beam, int64_t wanted, BeamScratch* scratch) const;
    float least_score(int64_t begin, int64_t end, int64_t wanted, int64_t limit,
                      BeamScratch* scratch) const;
    void fold_groups(const Row& row, int64_t limit, std::vector<float>* folded) const;
    void collect_row(const Row& row, int32_t parent, RowFilter filter, BeamScratch* scratch) const;

    const SelectParams& p_;
    const Kernels& k_;
    int64_t num_groups_;  // per row: one per lane and block
    float* groups_ = nullptr;
    int64_t num_rows_ = 0;
    std::vector<Row> rows_;
    std::vector<int32_t> row_of_;  // of every entry, -1 for a held one
    std::vector<int32_t> beam_of_;
};

}  // namespace pybeam
