// The operator `mixture`.
#pragma once

#include <vector>

#include "../params/mixture.h"
#include "check.h"

namespace pybeam {

inline void mixture(const Tensor& out, TensorList logits) {
    PYBEAM_CHECK_VALUE(!logits.empty(), "`logits` must be at least one tensor, but there is none");
    check_dim("out", out, 2);
    check_tensor("out", out, ScalarType::kFloat32, out.sizes());
    check_contiguous("out", out);
    std::vector<const float*> pointers;
    std::vector<int64_t> strides;
    for (const Tensor& own : logits) {
        check_tensor("logits", own, ScalarType::kFloat32, out.sizes());
        check_unit_stride("logits", own);
        pointers.push_back(data<float>(own));
        strides.push_back(own.stride(0));
    }
    MixtureParams params{};
    params.logits = pointers.data();
    params.row_stride = strides.data();
    params.out = data<float>(out);
    params.num_members = static_cast<int64_t>(logits.size());
    params.num_rows = out.size(0);
    params.vocab_size = out.size(1);
    params.num_threads = num_threads();
    launch_mixture(params);
}

}  // namespace pybeam
