// Arguments of the kernel `log_softmax`.
#pragma once

#include <cstdint>

namespace pybeam {

// out = log(softmax(logits)), [num_rows, vocab_size].
struct LogSoftmaxParams {
    const float* logits;
    int64_t row_stride;
    float* out;
    int64_t num_rows;
    int64_t vocab_size;
    int num_threads;
};

void launch_log_softmax(const LogSoftmaxParams& params);

}  // namespace pybeam
