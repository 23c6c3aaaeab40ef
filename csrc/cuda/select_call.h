// The arguments of `select` on a GPU.
#pragma once

#include "../ops/select.h"
#include "params.cuh"

namespace pybeam::cuda {

// A block ranks the candidates of a beam, so many at most.
inline void check_sizes(const pybeam::SelectParams& p, int64_t num_columns) {
    PYBEAM_CHECK_VALUE(num_columns <= kMaxVocab, "`logits` has too many columns");
    const bool refills = p.finishing == Finishing::kRefill;
    const int64_t most = refills ? 2 * kMaxBlockWidth : kMaxBlockWidth;
    PYBEAM_CHECK_VALUE(p.capacity <= most, "`capacity` must be at most ", most,
                       " in this kernel, but is ", p.capacity, "; use backend='triton'");
}

// Entries that are held have no row, and each other one has the row that follows.
inline void check_entries(int64_t num_entries, int64_t num_rows, const OptionalTensor& is_ended) {
    PYBEAM_CHECK_VALUE(num_entries == num_rows || is_ended.has_value(), "`score` must have ",
                       num_rows, " numbers, one for each row, but has ", num_entries);
}

}  // namespace pybeam::cuda
