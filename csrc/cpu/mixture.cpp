#include "../params/mixture.h"

#include <algorithm>
#include <cmath>

#include "log_sum.h"
#include "parallel.h"

namespace pybeam {

void launch_mixture(const MixtureParams& params) {
    const int64_t work = params.num_rows * params.vocab_size * params.num_members;
    parallel_for(threads_for(work, params.num_rows, params.num_threads), params.num_rows,
                 [&](int64_t row) {
                     static thread_local Scratch<MixedRow> kept;
                     MixedRow* members = kept.room(params.num_members);
                     float* out = params.out + row * params.vocab_size;
                     for (int64_t i = 0; i < params.num_members; ++i) {
                         const float* logits = params.logits[i] + row * params.row_stride[i];
                         // a member that allows nothing adds no probability
                         const LogSum sum = log_sum_of(logits, DType::kFloat32, params.vocab_size);
                         if (std::isnan(sum.log_sum)) {
                             std::fill_n(out, params.vocab_size, NAN);
                             return;
                         }
                         members[i] = {logits, sum.peak, sum.log_sum};
                     }
                     kernels().mix_row(params, members, out);
                 });
}

}  // namespace pybeam
