#include "../params/rms_norm.h"

#include "../counters.h"
#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {

void launch_rms_norm(const RmsNormParams& p) {
    const Counted counted(Kernel::kNorm,
                          [&] { return KernelWork{4 * 2 * p.num_rows * p.num_heads * p.size, 0}; });
    const RmsNormRow rms_norm_row = kernels().rms_norm_row;
    for_rows(p.num_rows, p.num_heads * p.size, p.num_threads, [&](int64_t row) {
        for (int64_t h = 0; h < p.num_heads; ++h) {
            const float* x = p.x + row * p.x_row_stride + h * p.x_head_stride;
            rms_norm_row(x, p.weight, p.epsilon, p.size, p.y + (row * p.num_heads + h) * p.size);
        }
    });
}

}  // namespace pybeam
