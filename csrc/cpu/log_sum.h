// The sum by which logits become log-probabilities, the same for whoever needs it.
#pragma once

#include <cmath>

#include "../dispatch.h"
#include "../scratch.h"

namespace pybeam {

// log_prob = (logit - peak) - log_sum. A row that allows nothing stays as it is.
struct LogSum {
    float peak;
    float log_sum;  // NaN if the row holds NaN or +inf

    float log_prob(float logit) const { return (logit - peak) - log_sum; }
};

inline RowTotal total_of(const void* logits, DType dtype, int64_t size) {
    static thread_local Scratch<float> groups;
    const Kernels& k = kernels();
    const int64_t block = kBlockVectors * k.vector_width;
    float* block_max = groups.room((size + block - 1) / block * k.vector_width);
    return k.scan_row[static_cast<int>(dtype)](logits, size, nullptr, block_max);
}

inline LogSum log_sum_of(const void* logits, DType dtype, int64_t size) {
    const RowTotal total = total_of(logits, dtype, size);
    if (total.peak == -INFINITY && !std::isnan(total.sum)) return {0.0f, 0.0f};
    return {total.peak, static_cast<float>(std::log(total.sum))};
}

// log_probs = log(softmax(logits)).
inline void log_softmax(const float* __restrict logits, int64_t size, float* __restrict log_probs) {
    const LogSum sum = log_sum_of(logits, DType::kFloat32, size);
    for (int64_t i = 0; i < size; ++i) log_probs[i] = sum.log_prob(logits[i]);
}

// The same where the logits are.
inline void log_softmax(float* logits, int64_t size) {
    const LogSum sum = log_sum_of(logits, DType::kFloat32, size);
    for (int64_t i = 0; i < size; ++i) logits[i] = sum.log_prob(logits[i]);
}

}  // namespace pybeam
