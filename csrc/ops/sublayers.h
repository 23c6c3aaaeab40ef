// The arguments of a stack: weights, pools and cells.
#pragma once

#include <vector>

#include "../params/layers.h"
#include "check.h"
#include "linear.h"

namespace pybeam {

// Takes weights from a list, in which an empty tensor stands for none.
class WeightReader {
  public:
    explicit WeightReader(const std::vector<Tensor>& weights) : weights_(weights) {}

    // A norm without a weight is none, one without a bias a root-mean-square norm.
    NormWeights norm(int64_t size) {
        const Tensor &weight = next(), &bias = next();
        if (weight.numel() == 0) return {};
        const auto* biases = bias.numel() == 0 ? nullptr : numbers("bias of a norm", bias, size);
        return {numbers("weight of a norm", weight, size), biases};
    }

    LinearWeights linear(int64_t num_columns, int64_t depth) {
        const Tensor &weight = next(), &scale = next(), &bias = next();
        if (weight.numel() == 0) return {};
        check_packed(weight, some(scale), num_columns, depth);
        const auto column_numbers = [&](const char* name, const Tensor& tensor) -> const float* {
            return tensor.numel() == 0 ? nullptr : numbers(name, tensor, num_columns);
        };
        return {weight.data_ptr(),
                weight_type(weight),
                keeps_large(weight),
                column_numbers("scale", scale),
                column_numbers("bias", bias),
                num_columns,
                depth};
    }

    // The norms around a sublayer, at least one of which must be there.
    SublayerNorms norms(int64_t size) {
        const NormWeights before = norm(size), added = norm(size), behind = norm(size);
        PYBEAM_CHECK_VALUE(
            before.weight != nullptr || added.weight != nullptr || behind.weight != nullptr,
            "`weights` lacks a norm of a layer");
        return {before, added, behind};
    }

    // A linear layer that must be there.
    LinearWeights matrix(int64_t num_columns, int64_t depth) {
        const LinearWeights weights = linear(num_columns, depth);
        PYBEAM_CHECK_VALUE(weights.weight != nullptr, "`weights` lacks a matrix of a layer");
        return weights;
    }

    const Tensor& next() {
        PYBEAM_CHECK_VALUE(next_ < weights_.size(),
                           "`weights` has too few tensors: ", weights_.size());
        return weights_[next_++];
    }

    static OptionalTensor some(const Tensor& tensor) {
        return tensor.numel() == 0 ? OptionalTensor() : OptionalTensor(tensor);
    }

    bool is_done() const { return next_ == weights_.size(); }

  private:
    static const float* numbers(const char* name, const Tensor& tensor, int64_t size) {
        return state<float>(name, tensor, ScalarType::kFloat32, {size});
    }

    const std::vector<Tensor>& weights_;
    size_t next_ = 0;
};

// The heads of a stack.
struct Heads {
    int64_t num, num_keys;  // of queries; of keys and of values
    int64_t size;
};

// Fills in what attention over the cells of a list reads: offset, slot, cell, num_cells and, where
// rows see different cells, mask and entry, or entry, path, path_length and, where rows see some
// cells together, num_shared.
inline TreeAttentionParams attention_of(const std::vector<Tensor>& cells, int64_t num_rows,
                                        const Heads& heads, int64_t num_pool_cells, double scale) {
    PYBEAM_CHECK_VALUE(cells.size() == 4 || (cells.size() >= 6 && cells.size() <= 8),
                       "cells must be 4, 6, 7 or 8 tensors, but are ", cells.size());
    check_dim("slot", cells[1], 1);
    check_dim("cell", cells[2], 2);
    const int64_t num_sources = cells[1].size(0), num_slots = cells[2].size(0);
    const int64_t max_cells = cells[2].size(1);
    TreeAttentionParams params{};
    params.dtype = params.cell_dtype = DType::kFloat32;
    params.offset = state<int32_t>("offset", cells[0], ScalarType::kInt32, {num_sources + 1});
    params.slot = state<int32_t>("slot", cells[1], ScalarType::kInt32, {num_sources});
    params.cell = state<int32_t>("cell", cells[2], ScalarType::kInt32, {num_slots, max_cells});
    params.num_cells = state<int32_t>("num_cells", cells[3], ScalarType::kInt32, {num_slots});
    if (cells.size() == 6) {
        check_dim("mask", cells[4], 3);
        params.mask_words = cells[4].size(2);
        params.mask = state<int64_t>("mask", cells[4], ScalarType::kInt64,
                                     {num_slots, max_cells, params.mask_words});
        params.entry = state<int32_t>("entry", cells[5], ScalarType::kInt32, {num_rows});
    } else if (cells.size() > 6) {
        check_dim("path", cells[5], 3);
        params.max_entries = cells[5].size(1);
        params.max_path = cells[5].size(2);
        params.entry = state<int32_t>("entry", cells[4], ScalarType::kInt32, {num_rows});
        params.path = state<int32_t>("path", cells[5], ScalarType::kInt32,
                                     {num_slots, params.max_entries, params.max_path});
        params.path_length =
            state<int32_t>("path_length", cells[6], ScalarType::kInt32, {num_slots});
    }
    if (cells.size() == 8) {
        params.num_shared = state<int32_t>("num_shared", cells[7], ScalarType::kInt32, {num_slots});
    }
    params.num_rows = num_rows;
    params.num_sources = num_sources;
    params.num_slots = num_slots;
    params.num_pool_cells = num_pool_cells;
    params.num_heads = heads.num;
    params.num_key_heads = heads.num_keys;
    params.head_size = heads.size;
    params.max_cells = max_cells;
    params.scale = static_cast<float>(scale);
    return params;
}

inline LayerPool pool_of(const char* name, const OptionalTensor& pool, int64_t num_layers,
                         const Heads& heads) {
    if (!pool.has_value()) return {};
    check_dim(name, *pool, 5);
    const int64_t num_cells = pool->size(1);
    const bool is_rounded = pool->scalar_type() == ScalarType::kBFloat16;
    void* data = state<void>(name, *pool, is_rounded ? ScalarType::kBFloat16 : ScalarType::kFloat32,
                             {num_layers, num_cells, 2, heads.num_keys, heads.size});
    const DType dtype = is_rounded ? DType::kBFloat16 : DType::kFloat32;
    return {data, dtype, num_cells, pool->stride(0), heads.num_keys * heads.size, true};
}

}  // namespace pybeam
