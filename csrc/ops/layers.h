// The layers of a transformer in one call.
#pragma once

#include <vector>

#include "../params/layers.h"
#include "check.h"
#include "embed.h"
#include "linear.h"

namespace pybeam {

// Takes weights from a list, in which an empty tensor stands for none.
class WeightReader {
  public:
    explicit WeightReader(const std::vector<Tensor>& weights) : weights_(weights) {}

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

    const Tensor& next() {
        PYBEAM_CHECK_VALUE(next_ < weights_.size(),
                           "`weights` has too few tensors: ", weights_.size());
        return weights_[next_++];
    }

    bool is_done() const { return next_ == weights_.size(); }

  private:
    static const float* numbers(const char* name, const Tensor& tensor, int64_t size) {
        return state<float>(name, tensor, ScalarType::kFloat32, {size});
    }

    const std::vector<Tensor>& weights_;
    size_t next_ = 0;
};

// Fills in what attention over the cells of a list reads: offset, slot, cell, num_cells and, where
// rows see different cells, mask and entry, or entry, path, path_length and, where rows see some
// cells together, num_shared.
inline TreeAttentionParams attention_of(const std::vector<Tensor>& cells, int64_t num_rows,
                                        int64_t num_heads, int64_t head_size,
                                        int64_t num_pool_cells, double scale) {
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
    params.num_heads = params.num_key_heads = num_heads;
    params.head_size = head_size;
    params.max_cells = max_cells;
    params.scale = static_cast<float>(scale);
    return params;
}

inline LayerPool pool_of(const char* name, const OptionalTensor& pool, int64_t num_layers,
                         int64_t num_heads, int64_t head_size, bool may_be_rounded) {
    if (!pool.has_value()) return {};
    check_dim(name, *pool, 5);
    const int64_t num_cells = pool->size(1);
    const bool is_rounded = may_be_rounded && pool->scalar_type() == ScalarType::kBFloat16;
    void* data = state<void>(name, *pool, is_rounded ? ScalarType::kBFloat16 : ScalarType::kFloat32,
                             {num_layers, num_cells, 2, num_heads, head_size});
    const DType dtype = is_rounded ? DType::kBFloat16 : DType::kFloat32;
    return {data, dtype, num_cells, pool->stride(0), true};
}

// The shapes and facts of a stack.
struct StackShape {
    int64_t num_layers;
    int64_t inner_size;
    Activation activation;
    bool is_pre_norm;
    bool has_cross;  // a decoder's layers attend over encoder states
    double epsilon;
    int64_t num_heads;
    double scale;
    int64_t num_columns;  // of the output layer, 0: there is none
    double embedding_scale;
    int64_t num_tokens;  // of the token table, 0: there is none
};

// The cells that rows attend over in one call.
struct StackCells {
    OptionalTensor own_pool, cross_pool;  // [layers, cells, 2, heads, head size]
    OptionalTensor cell;                  // [rows], where each row's key and value go
    std::vector<Tensor> own, cross;
};

// The layers of a transformer, whose weights are checked once.
class LayerProgram {
  public:
    // The weights must live as long as the program.
    LayerProgram(const std::vector<Tensor>& weights, const StackShape& shape) : shape_(shape) {
        PYBEAM_CHECK_VALUE(shape.num_layers >= 0 && shape.inner_size > 0 && shape.num_columns >= 0,
                           "the numbers of a stack must be positive, but it has ", shape.num_layers,
                           " layers of inner size ", shape.inner_size, " and ", shape.num_columns,
                           " columns");
        WeightReader reader(weights);
        read_embedding(reader);
        PYBEAM_CHECK_VALUE(shape.num_heads > 0 && size_ % shape.num_heads == 0,
                           "`num_heads` must divide ", size_, ", but is ", shape.num_heads);
        params_.is_pre_norm = shape.is_pre_norm;
        params_.activation = shape.activation;
        params_.epsilon = static_cast<float>(shape.epsilon);
        params_.size = size_;
        params_.inner_size = shape.inner_size;
        params_.embedding_norm = reader.norm(size_);
        params_.final_norm = reader.norm(size_);
        params_.output = reader.linear(shape.num_columns, size_);
        PYBEAM_CHECK_VALUE((params_.output.weight != nullptr) == (shape.num_columns > 0),
                           "`weights` must have an output layer of ", shape.num_columns,
                           " columns");
        for (int64_t i = 0; i < shape.num_layers; ++i) params_.layers.push_back(layer(reader, i));
        PYBEAM_CHECK_VALUE(reader.is_done(), "`weights` has too many tensors: ", weights.size());
    }

    // Runs the layers on tokens at positions, both [rows].
    void run(const Tensor& out, const Tensor& token, const Tensor& position,
             const StackCells& cells) const {
        PYBEAM_CHECK_VALUE(shape_.num_tokens > 0, "`weights` must have a token table");
        check_dim("token", token, 1);
        const int64_t num_rows = token.size(0);
        EmbedParams embed = embed_;
        embed.token = state<int32_t>("token", token, ScalarType::kInt32, {num_rows});
        embed.position = state<int32_t>("position", position, ScalarType::kInt32, {num_rows});
        embed.num_rows = num_rows;
        embed.num_threads = 1;
        LayersParams params = params_of(out, num_rows, cells);
        params.embed = &embed;
        launch_layers(params);
    }

    // Runs the layers on x [rows, size], which is overwritten.
    void run(const Tensor& out, const Tensor& x, const StackCells& cells) const {
        check_dim("x", x, 2);
        LayersParams params = params_of(out, x.size(0), cells);
        params.x = state<float>("x", x, ScalarType::kFloat32, {x.size(0), size_});
        params.embedding_norm = {};
        launch_layers(params);
    }

  private:
    void read_embedding(WeightReader& reader) {
        const Tensor &table = reader.next(), &scale = reader.next(), &positions = reader.next();
        check_dim("position_table", positions, 2);
        size_ = positions.size(1);
        if (shape_.num_tokens == 0) return;
        embed_ = embed_of(table, scale.numel() == 0 ? OptionalTensor() : OptionalTensor(scale),
                          shape_.num_tokens, positions, shape_.embedding_scale);
    }

    LayerWeights layer(WeightReader& reader, int64_t i) const {
        LayerWeights layer{};
        layer.self_norm = reader.norm(size_);
        layer.qkv = reader.linear(3 * size_, size_);
        layer.self_out = reader.linear(size_, size_);
        if (shape_.has_cross) {
            layer.cross_norm = reader.norm(size_);
            layer.cross_query = reader.linear(size_, size_);
            layer.cross_out = reader.linear(size_, size_);
        }
        layer.inner_norm = reader.norm(size_);
        layer.inner = reader.linear(shape_.inner_size, size_);
        layer.inner_out = reader.linear(size_, shape_.inner_size);
        const bool is_whole = layer.qkv.weight != nullptr && layer.self_out.weight != nullptr &&
                              layer.inner.weight != nullptr && layer.inner_out.weight != nullptr &&
                              (!shape_.has_cross || (layer.cross_query.weight != nullptr &&
                                                     layer.cross_out.weight != nullptr));
        PYBEAM_CHECK_VALUE(is_whole, "`weights` lacks a matrix of layer ", i);
        const bool is_normed = layer.self_norm.weight != nullptr &&
                               layer.inner_norm.weight != nullptr &&
                               (!shape_.has_cross || layer.cross_norm.weight != nullptr);
        PYBEAM_CHECK_VALUE(is_normed, "`weights` lacks a norm of layer ", i);
        return layer;
    }

    LayersParams params_of(const Tensor& out, int64_t num_rows, const StackCells& cells) const {
        const int64_t layers = shape_.num_layers, heads = shape_.num_heads;
        const int64_t head_size = size_ / heads;
        PYBEAM_CHECK_VALUE(cells.own_pool.has_value() == cells.cell.has_value(),
                           "`own_pool` and `cell` go together");
        PYBEAM_CHECK_VALUE(cells.cross_pool.has_value() == shape_.has_cross,
                           "`cross_pool` must be given for a decoder alone");
        LayersParams params = params_;
        params.num_rows = num_rows;
        const int64_t columns = shape_.num_columns == 0 ? size_ : shape_.num_columns;
        params.out = state<float>("out", out, ScalarType::kFloat32, {num_rows, columns});
        params.own_pool = pool_of("own_pool", cells.own_pool, layers, heads, head_size, false);
        params.cross_pool = pool_of("cross_pool", cells.cross_pool, layers, heads, head_size, true);
        const int64_t num_cells = cells.own_pool.has_value() ? params.own_pool.num_cells : num_rows;
        params.own = attention_of(cells.own, num_rows, heads, head_size, num_cells, shape_.scale);
        if (cells.cell.has_value()) {
            params.cell = state<int32_t>("cell", *cells.cell, ScalarType::kInt32, {num_rows});
        }
        if (shape_.has_cross) {
            params.cross = attention_of(cells.cross, num_rows, heads, head_size,
                                        params.cross_pool.num_cells, shape_.scale);
        }
        params.num_threads = num_threads();
        return params;
    }

    StackShape shape_;
    int64_t size_ = 0;
    EmbedParams embed_{};
    LayersParams params_{};
};

}  // namespace pybeam
