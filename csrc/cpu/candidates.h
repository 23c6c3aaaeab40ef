// Candidates: tokens that may continue a beam, and what becomes of them.
#pragma once

#include <cstdint>
#include <vector>

#include "../params/select.h"
#include "select.h"

namespace pybeam {

struct Candidate {
    float score;
    float log_prob;
    int32_t parent;
    int32_t token;
    bool is_held;
};

// Leaves the best `wanted` candidates, best first; equal scores keep their order. `order` is
// memory.
void rank(int64_t wanted, std::vector<Key>* order, std::vector<Candidate>* candidates);

// Finishes hypotheses and prunes the ranked candidates of a beam, which change, and writes those
// that survive.
void write_survivors(const SelectParams& params, int64_t beam, std::vector<Candidate>* candidates);

}  // namespace pybeam
