// Arguments of the kernels `gather_rows` and `scatter_rows`.
#pragma once

#include <cstdint>

namespace pybeam {

// One tensor of per-row state: rows of `row_bytes`, `stride_bytes` apart.
struct RowTensor {
    char* data;
    int64_t row_bytes;
    int64_t stride_bytes;
};

struct GatherRowsParams {
    const RowTensor* tensors;
    int64_t num_tensors;
    const int32_t* source;
    const int32_t* target;
    int64_t num_moves;
    int64_t num_rows;
    int num_threads;
};

struct ScatterRowsParams {
    RowTensor pool;
    RowTensor rows;
    const int32_t* index;
    int64_t num_index;
    int64_t num_pool_rows;
    int num_threads;
};

void launch_gather_rows(const GatherRowsParams& params);
void launch_scatter_rows(const ScatterRowsParams& params);

}  // namespace pybeam
