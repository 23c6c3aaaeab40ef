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

}  // namespace pybeam::cuda
