#include "../params/log_softmax.h"

#include "../counters.h"
#include "log_sum.h"
#include "parallel.h"

namespace pybeam {

void launch_log_softmax(const LogSoftmaxParams& p) {
    const Counted counted(Kernel::kProcessors,
                          [&] { return KernelWork{4 * 2 * p.num_rows * p.vocab_size, 0}; });
    const int64_t work = p.num_rows * p.vocab_size;
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        log_softmax(p.logits + row * p.row_stride, p.vocab_size, p.out + row * p.vocab_size);
    });
}

}  // namespace pybeam
