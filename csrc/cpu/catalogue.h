// The columns of rows of logits, which may be written in any order, on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "../params/catalogue.h"

namespace pybeam {

// Edges of a node of a catalogue's tree.
struct Edges {
    int64_t begin;
    int64_t end;
};

class Columns {
  public:
    // Throws std::runtime_error before anything would be read or written out of bounds.
    explicit Columns(const CatalogueColumnsParams& params);

    // Writes and returns the columns of a row, whose logits [vocab_size] these are.
    const float* write_row(int64_t row, const void* logits);

    // Throws std::runtime_error if a token was no column of the logits.
    void check() const;

  private:
    float at(const void* logits, int64_t token);
    void normalise(const void* logits, std::vector<float>& values) const;

    const CatalogueColumnsParams& p_;
    std::vector<Edges> edges_;
    std::atomic<bool> has_strange_token_{false};
};

}  // namespace pybeam
