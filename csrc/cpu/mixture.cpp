#include "../params/mixture.h"

#include <algorithm>
#include <cmath>

#include "../dispatch.h"
#include "../scratch.h"
#include "parallel.h"

namespace pybeam {

void launch_mixture(const MixtureParams& params) {
    const Kernels& k = kernels();
    const int64_t block = kBlockVectors * k.vector_width;
    const int64_t num_groups = (params.vocab_size + block - 1) / block * k.vector_width;
    const int64_t work = params.num_rows * params.vocab_size * params.num_members;
    parallel_for(
        threads_for(work, params.num_rows, params.num_threads), params.num_rows, [&](int64_t row) {
            static thread_local Scratch<float> groups;
            static thread_local Scratch<MixedRow> kept;
            float* block_max = groups.room(num_groups);
            MixedRow* members = kept.room(params.num_members);
            float* out = params.out + row * params.vocab_size;
            for (int64_t i = 0; i < params.num_members; ++i) {
                const float* logits = params.logits[i] + row * params.row_stride[i];
                const RowTotal total = k.scan_row[0](logits, params.vocab_size, nullptr, block_max);
                if (std::isnan(total.sum)) {
                    std::fill_n(out, params.vocab_size, NAN);
                    return;
                }
                // a member that allows nothing adds no probability
                const bool is_empty = total.peak == -INFINITY;
                members[i] = {logits, is_empty ? 0.0f : total.peak,
                              is_empty ? 0.0f : static_cast<float>(std::log(total.sum))};
            }
            k.mix_row(params, members, out);
        });
}

}  // namespace pybeam
