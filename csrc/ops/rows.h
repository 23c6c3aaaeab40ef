// The operators `gather_rows` and `scatter_rows`.
#pragma once

#include <vector>

#include "../params/rows.h"
#include "check.h"

namespace pybeam {

// Rows of a tensor. All its dimensions but the first must be contiguous.
inline RowTensor rows_of(const char* name, const Tensor& tensor) {
    PYBEAM_CHECK_VALUE(tensor.dim() >= 1, "`", name, "` must have rows, but is a scalar");
    PYBEAM_CHECK_VALUE(tensor.is_contiguous(1), "`", name,
                       "` must be contiguous in all but the first dimension, but has strides ",
                       tensor.strides());
    int64_t items = 1;
    for (const int64_t size : tensor.sizes().from(1)) items *= size;
    const int64_t item = tensor.element_size();
    return RowTensor{data<char>(tensor), items * item, tensor.stride(0) * item};
}

inline void gather_rows(TensorList tensors, const Tensor& source, const Tensor& target) {
    check_dim("source", source, 1);
    if (tensors.empty() || source.size(0) == 0) return;
    const Argument<int32_t> source_arg("source", source, ScalarType::kInt32, {source.size(0)});
    const Argument<int32_t> target_arg("target", target, ScalarType::kInt32, {source.size(0)});
    std::vector<RowTensor> rows;
    for (const Tensor& tensor : tensors) {
        rows.push_back(rows_of("tensors", tensor));
        PYBEAM_CHECK_VALUE(tensor.size(0) == tensors[0].size(0), "`tensors` must all have ",
                           tensors[0].size(0), " rows, but one has ", tensor.size(0));
    }
    GatherRowsParams params{};
    params.tensors = rows.data();
    params.num_tensors = static_cast<int64_t>(rows.size());
    params.source = source_arg;
    params.target = target_arg;
    params.num_moves = source.size(0);
    params.num_rows = tensors[0].size(0);
    params.num_threads = num_threads();
    launch_gather_rows(params);
}

inline void scatter_rows(const Tensor& pool, const Tensor& index, const Tensor& rows) {
    check_dim("index", index, 1);
    const Argument<int32_t> index_arg("index", index, ScalarType::kInt32, {index.size(0)});
    ScatterRowsParams params{};
    params.pool = rows_of("pool", pool);
    params.rows = rows_of("rows", rows);
    PYBEAM_CHECK_VALUE(
        rows.scalar_type() == pool.scalar_type() && rows.element_size() == pool.element_size(),
        "`rows` must be ", pool.scalar_type(), " as `pool`, but is ", rows.scalar_type());
    PYBEAM_CHECK_VALUE(
        rows.size(0) == index.size(0) && rows.sizes().from(1) == pool.sizes().from(1),
        "`rows` must be [", index.size(0), ", ...] with rows like those of `pool`, ", pool.sizes(),
        ", but is ", rows.sizes());
    params.index = index_arg;
    params.num_index = index.size(0);
    params.num_pool_rows = pool.size(0);
    params.num_threads = num_threads();
    launch_scatter_rows(params);
}

}  // namespace pybeam
