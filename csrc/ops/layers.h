// The operator `run_layers`.
#pragma once

#include <ATen/Parallel.h>

#include "../params/layers.h"
#include "check.h"
#include "linear.h"

namespace pybeam {

// Takes weights from a list, in which an empty tensor stands for none.
class WeightReader {
  public:
    explicit WeightReader(at::TensorList weights) : weights_(weights) {}

    NormWeights norm(int64_t size) {
        const Tensor &weight = next(), &bias = next();
        if (weight.numel() == 0) return {};
        return {numbers("weight of a norm", weight, size), numbers("bias of a norm", bias, size)};
    }

    LinearWeights linear(int64_t num_columns, int64_t depth) {
        const Tensor &weight = next(), &scale = next(), &bias = next();
        if (weight.numel() == 0) return {};
        check_packed(weight, scale.numel() == 0 ? OptionalTensor() : OptionalTensor(scale),
                     num_columns, depth);
        const auto some = [&](const char* name, const Tensor& tensor) -> const float* {
            return tensor.numel() == 0 ? nullptr : numbers(name, tensor, num_columns);
        };
        return {weight.data_ptr(),  weight_type(weight), some("scale", scale),
                some("bias", bias), num_columns,         depth};
    }

    bool is_done() const { return next_ == weights_.size(); }

  private:
    const Tensor& next() {
        TORCH_CHECK_VALUE(next_ < weights_.size(),
                          "`weights` has too few tensors: ", weights_.size());
        return weights_[next_++];
    }

    static const float* numbers(const char* name, const Tensor& tensor, int64_t size) {
        return state<float>(name, tensor, at::kFloat, {size});
    }

    at::TensorList weights_;
    size_t next_ = 0;
};

// Fills in what attention over the cells of a list reads: offset, slot, cell, num_cells and, where
// rows see different cells, mask and entry.
inline TreeAttentionParams attention_of(at::TensorList cells, int64_t num_rows, int64_t num_heads,
                                        int64_t head_size, int64_t num_pool_cells, double scale) {
    TORCH_CHECK_VALUE(cells.size() == 4 || cells.size() == 6,
                      "cells must be 4 or 6 tensors, but are ", cells.size());
    check_dim("slot", cells[1], 1);
    check_dim("cell", cells[2], 2);
    const int64_t num_sources = cells[1].size(0), num_slots = cells[2].size(0);
    const int64_t max_cells = cells[2].size(1);
    TreeAttentionParams params{};
    params.dtype = DType::kFloat32;
    params.offset = state<int32_t>("offset", cells[0], at::kInt, {num_sources + 1});
    params.slot = state<int32_t>("slot", cells[1], at::kInt, {num_sources});
    params.cell = state<int32_t>("cell", cells[2], at::kInt, {num_slots, max_cells});
    params.num_cells = state<int32_t>("num_cells", cells[3], at::kInt, {num_slots});
    if (cells.size() == 6) {
        check_dim("mask", cells[4], 3);
        params.mask_words = cells[4].size(2);
        params.mask =
            state<int64_t>("mask", cells[4], at::kLong, {num_slots, max_cells, params.mask_words});
        params.entry = state<int32_t>("entry", cells[5], at::kInt, {num_rows});
    }
    params.num_rows = num_rows;
    params.num_sources = num_sources;
    params.num_slots = num_slots;
    params.num_pool_cells = num_pool_cells;
    params.num_heads = params.num_key_heads = num_heads;
    params.head_size = head_size;
    params.max_cells = max_cells;
    params.scale = static_cast<float>(scale);
    return params;
}

inline LayerPool pool_of(const char* name, const OptionalTensor& pool, int64_t num_layers,
                         int64_t num_heads, int64_t head_size) {
    if (!pool.has_value()) return {};
    check_dim(name, *pool, 5);
    const int64_t num_cells = pool->size(1);
    float* data =
        state<float>(name, *pool, at::kFloat, {num_layers, num_cells, 2, num_heads, head_size});
    return {data, num_cells, pool->stride(0)};
}

inline void run_layers(const Tensor& out, const Tensor& x, at::TensorList weights,
                       int64_t num_layers, int64_t inner_size, int64_t activation, bool is_pre_norm,
                       double epsilon, int64_t num_heads, double scale,
                       const OptionalTensor& own_pool, const OptionalTensor& cross_pool,
                       const OptionalTensor& cell, at::TensorList own_cells,
                       at::TensorList cross_cells) {
    check_dim("x", x, 2);
    check_dim("out", out, 2);
    check_activation(activation);
    const int64_t num_rows = x.size(0), size = x.size(1);
    TORCH_CHECK_VALUE(num_heads > 0 && size % num_heads == 0, "`num_heads` must divide ", size,
                      ", but is ", num_heads);
    TORCH_CHECK_VALUE(num_layers >= 0 && inner_size > 0, "`num_layers` and `inner_size` must be ",
                      "positive, but are ", num_layers, " and ", inner_size);
    TORCH_CHECK_VALUE(own_pool.has_value() == cell.has_value(),
                      "`own_pool` and `cell` go together");
    const int64_t head_size = size / num_heads;
    LayersParams params{};
    params.is_pre_norm = is_pre_norm;
    params.activation = static_cast<Activation>(activation);
    params.epsilon = static_cast<float>(epsilon);
    params.num_rows = num_rows;
    params.size = size;
    params.inner_size = inner_size;
    params.x = state<float>("x", x, at::kFloat, {num_rows, size});
    params.out = state<float>("out", out, at::kFloat, {num_rows, out.size(1)});
    params.own_pool = pool_of("own_pool", own_pool, num_layers, num_heads, head_size);
    params.cross_pool = pool_of("cross_pool", cross_pool, num_layers, num_heads, head_size);
    const bool has_cross = cross_pool.has_value();
    const int64_t num_cells = own_pool.has_value() ? params.own_pool.num_cells : num_rows;
    params.own = attention_of(own_cells, num_rows, num_heads, head_size, num_cells, scale);
    if (cell.has_value()) {
        params.cell = state<int32_t>("cell", *cell, at::kInt, {num_rows});
    }
    if (has_cross) {
        params.cross = attention_of(cross_cells, num_rows, num_heads, head_size,
                                    params.cross_pool.num_cells, scale);
    }
    WeightReader reader(weights);
    params.final_norm = reader.norm(size);
    params.output = reader.linear(out.size(1), size);
    TORCH_CHECK_VALUE(params.output.weight != nullptr || out.size(1) == size, "`out` must be [",
                      num_rows, ", ", size, "] without an output layer, but is ", out.sizes());
    for (int64_t i = 0; i < num_layers; ++i) {
        LayerWeights layer{};
        layer.self_norm = reader.norm(size);
        layer.qkv = reader.linear(3 * size, size);
        layer.self_out = reader.linear(size, size);
        if (has_cross) {
            layer.cross_norm = reader.norm(size);
            layer.cross_query = reader.linear(size, size);
            layer.cross_out = reader.linear(size, size);
        }
        layer.inner_norm = reader.norm(size);
        layer.inner = reader.linear(inner_size, size);
        layer.inner_out = reader.linear(size, inner_size);
        const bool is_whole = layer.qkv.weight != nullptr && layer.self_out.weight != nullptr &&
                              layer.inner.weight != nullptr && layer.inner_out.weight != nullptr &&
                              (!has_cross || (layer.cross_query.weight != nullptr &&
                                              layer.cross_out.weight != nullptr));
        TORCH_CHECK_VALUE(is_whole, "`weights` lacks a matrix of layer ", i);
        const bool is_normed = layer.self_norm.weight != nullptr &&
                               layer.inner_norm.weight != nullptr &&
                               (!has_cross || layer.cross_norm.weight != nullptr);
        TORCH_CHECK_VALUE(is_normed, "`weights` lacks a norm of layer ", i);
        params.layers.push_back(layer);
    }
    TORCH_CHECK_VALUE(reader.is_done(), "`weights` has too many tensors: ", weights.size());
    params.num_threads = at::get_num_threads();
    launch_layers(params);
}

}  // namespace pybeam
