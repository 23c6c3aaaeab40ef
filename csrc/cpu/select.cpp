#include "select.h"

#include <algorithm>
#include <functional>

#include "../counters.h"
#include "../params/select.h"
#include "parallel.h"
#include "selection.h"

namespace pybeam {

float keep_largest(Key* keys, int64_t count, int64_t limit) {
    std::nth_element(keys, keys + limit - 1, keys + count, std::greater<>());
    return keys[limit - 1].value();
}

void launch_select(const SelectParams& params) {
    const Counted counted(Kernel::kSelect, [&] {
        const int64_t item = params.dtype == DType::kFloat32 ? 4 : 2;
        return KernelWork{params.num_rows * params.vocab_size * item, 0};
    });
    Selection selection(params);
    const int64_t num_rows = selection.num_rows(), num_beams = params.num_beams;
    const int64_t row_bytes = params.row_stride * (params.dtype == DType::kFloat32 ? 4 : 2);
    const auto read_row = [&](int64_t row) {
        selection.read_row(row, static_cast<const char*>(params.logits) + row * row_bytes);
    };
    const auto finish_beam = [&](int64_t beam) { selection.finish_beam(beam); };
    // two logits are read in the time of one multiply-add of a product
    const int64_t work = num_rows * params.vocab_size / 2;
    parallel_for(threads_for(work, num_rows, params.num_threads), num_rows, read_row);
    parallel_for(threads_for(work, num_beams, params.num_threads), num_beams, finish_beam);
    selection.check_counts();
}

}  // namespace pybeam
