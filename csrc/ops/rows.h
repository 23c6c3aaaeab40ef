// The operators `gather_rows` and `scatter_rows`.
#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "../params/rows.h"
#include "check.h"

namespace pybeam {

// Rows of a tensor. All its dimensions but the first must be contiguous.
inline RowTensor rows_of(const char* name, const Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.dim() >= 1, "`", name, "` must have rows, but is a scalar");
    int64_t expected = 1;
    for (int64_t d = tensor.dim() - 1; d >= 1; --d) {
        TORCH_CHECK_VALUE(tensor.size(d) <= 1 || tensor.stride(d) == expected, "`", name,
                          "` must be contiguous in all but the first dimension, but has strides ",
                          tensor.strides());
        expected *= tensor.size(d);
    }
    const int64_t item = static_cast<int64_t>(tensor.element_size());
    return RowTensor{static_cast<char*>(tensor.data_ptr()), expected * item,
                     tensor.stride(0) * item};
}

inline void gather_rows(at::TensorList tensors, const Tensor& source, const Tensor& target) {
    check_dim("source", source, 1);
    if (tensors.empty() || source.size(0) == 0) return;
    const Argument<int32_t> source_arg("source", source, at::kInt, {source.size(0)});
    const Argument<int32_t> target_arg("target", target, at::kInt, {source.size(0)});
    std::vector<RowTensor> rows;
    for (const Tensor& tensor : tensors) {
        rows.push_back(rows_of("tensors", tensor));
        TORCH_CHECK_VALUE(tensor.size(0) == tensors[0].size(0), "`tensors` must all have ",
                          tensors[0].size(0), " rows, but one has ", tensor.size(0));
    }
    GatherRowsParams params{};
    params.tensors = rows.data();
    params.num_tensors = static_cast<int64_t>(rows.size());
    params.source = source_arg;
    params.target = target_arg;
    params.num_moves = source.size(0);
    params.num_rows = tensors[0].size(0);
    params.num_threads = at::get_num_threads();
    launch_gather_rows(params);
}

inline void scatter_rows(const Tensor& pool, const Tensor& index, const Tensor& rows) {
    check_dim("index", index, 1);
    const Argument<int32_t> index_arg("index", index, at::kInt, {index.size(0)});
    ScatterRowsParams params{};
    params.pool = rows_of("pool", pool);
    params.rows = rows_of("rows", rows);
    TORCH_CHECK_VALUE(rows.scalar_type() == pool.scalar_type(), "`rows` must be ",
                      pool.scalar_type(), " as `pool`, but is ", rows.scalar_type());
    TORCH_CHECK_VALUE(
        rows.size(0) == index.size(0) && rows.sizes().slice(1) == pool.sizes().slice(1),
        "`rows` must be [", index.size(0), ", ...] with rows like those of `pool`, ", pool.sizes(),
        ", but is ", rows.sizes());
    params.index = index_arg;
    params.num_index = index.size(0);
    params.num_pool_rows = pool.size(0);
    params.num_threads = at::get_num_threads();
    launch_scatter_rows(params);
}

}  // namespace pybeam
