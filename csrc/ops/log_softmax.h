// The operator `log_softmax`.
#pragma once

#include "../params/log_softmax.h"
#include "check.h"

namespace pybeam {

inline Tensor log_softmax(const Tensor& logits) {
    check_dim("logits", logits, 2);
    PYBEAM_CHECK_VALUE(float_type("logits", logits) == DType::kFloat32,
                       "`logits` must be float32, but is ", logits.scalar_type());
    check_unit_stride("logits", logits);
    Tensor out = empty(logits.sizes(), ScalarType::kFloat32);
    LogSoftmaxParams params{};
    params.logits = data<const float>(logits);
    params.row_stride = logits.stride(0);
    params.out = data<float>(out);
    params.num_rows = logits.size(0);
    params.vocab_size = logits.size(1);
    params.num_threads = num_threads();
    launch_log_softmax(params);
    return out;
}

}  // namespace pybeam
