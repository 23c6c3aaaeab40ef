// The layers of a transformer in one call.
#pragma once

#include <vector>

#include "../params/layers.h"
#include "check.h"
#include "embed.h"
#include "linear.h"
#include "sublayers.h"

namespace pybeam {

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
    int64_t head_size;
    bool is_gated;        // inner layers have twice the columns: gates, then what they gate
    int64_t bias_origin;  // the column of position biases for distance 0
};

// The cells that rows attend over in one call.
struct StackCells {
    OptionalTensor own_pool, cross_pool;  // [layers, cells, 2, heads, head size]
    OptionalTensor cell;                  // [rows], where each row's key and value go
    std::vector<Tensor> own, cross;
    // of rows, and of what stands in the cells of `own`, where there are position biases
    OptionalTensor position, cell_position;
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
        PYBEAM_CHECK_VALUE(shape.num_heads > 0 && shape.head_size > 0,
                           "`num_heads` and `head_size` must be positive, but are ",
                           shape.num_heads, " and ", shape.head_size);
        heads_ = {shape.num_heads, shape.num_heads, shape.head_size};
        params_.is_pre_norm = shape.is_pre_norm;
        params_.activation = shape.activation;
        params_.epsilon = static_cast<float>(shape.epsilon);
        params_.size = size_;
        params_.inner_size = shape.inner_size;
        params_.attended_size = heads_.num * heads_.size;
        params_.is_gated = shape.is_gated;
        params_.embedding_norm = reader.norm(size_);
        params_.final_norm = reader.norm(size_);
        params_.output = reader.linear(shape.num_columns, size_);
        PYBEAM_CHECK_VALUE((params_.output.weight != nullptr) == (shape.num_columns > 0),
                           "`weights` must have an output layer of ", shape.num_columns,
                           " columns");
        read_bias(reader);
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
        embed_ = embed_of(table, WeightReader::some(scale), shape_.num_tokens, positions,
                          shape_.embedding_scale);
    }

    // Reads the numbers [heads, distances] that self-attention adds to scores.
    void read_bias(WeightReader& reader) {
        const Tensor& bias = reader.next();
        if (bias.numel() == 0) return;
        check_dim("bias", bias, 2);
        bias_size_ = bias.size(1);
        bias_ = state<float>("bias", bias, ScalarType::kFloat32, {heads_.num, bias_size_});
    }

    LayerWeights layer(WeightReader& reader, int64_t i) const {
        LayerWeights layer{};
        layer.self_norm = reader.norm(size_);
        const int64_t attended = params_.attended_size;
        layer.qkv = reader.linear(3 * attended, size_);
        layer.self_out = reader.linear(size_, attended);
        if (shape_.has_cross) {
            layer.cross_norm = reader.norm(size_);
            layer.cross_query = reader.linear(attended, size_);
            layer.cross_out = reader.linear(size_, attended);
        }
        layer.inner_norm = reader.norm(size_);
        layer.inner = reader.linear((shape_.is_gated ? 2 : 1) * shape_.inner_size, size_);
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
        const int64_t layers = shape_.num_layers;
        PYBEAM_CHECK_VALUE(cells.own_pool.has_value() == cells.cell.has_value(),
                           "`own_pool` and `cell` go together");
        PYBEAM_CHECK_VALUE(cells.cross_pool.has_value() == shape_.has_cross,
                           "`cross_pool` must be given for a decoder alone");
        LayersParams params = params_;
        params.num_rows = num_rows;
        const int64_t columns = shape_.num_columns == 0 ? size_ : shape_.num_columns;
        params.out = state<float>("out", out, ScalarType::kFloat32, {num_rows, columns});
        params.own_pool = pool_of("own_pool", cells.own_pool, layers, heads_, false);
        params.cross_pool = pool_of("cross_pool", cells.cross_pool, layers, heads_, true);
        const int64_t num_cells = cells.own_pool.has_value() ? params.own_pool.num_cells : num_rows;
        params.own = attention_of(cells.own, num_rows, heads_, num_cells, shape_.scale);
        if (bias_ != nullptr) set_bias(cells, &params.own);
        if (cells.cell.has_value()) {
            params.cell = state<int32_t>("cell", *cells.cell, ScalarType::kInt32, {num_rows});
        }
        if (shape_.has_cross) {
            params.cross = attention_of(cells.cross, num_rows, heads_, params.cross_pool.num_cells,
                                        shape_.scale);
        }
        params.num_threads = num_threads();
        return params;
    }

    void set_bias(const StackCells& cells, TreeAttentionParams* own) const {
        PYBEAM_CHECK_VALUE(cells.position.has_value() && cells.cell_position.has_value(),
                           "`position` and `cell_position` must be given where there are biases");
        own->bias = bias_;
        own->bias_size = bias_size_;
        own->bias_origin = static_cast<int32_t>(shape_.bias_origin);
        own->position =
            state<int32_t>("position", *cells.position, ScalarType::kInt32, {own->num_rows});
        own->cell_position = state<int32_t>("cell_position", *cells.cell_position,
                                            ScalarType::kInt32, {own->num_pool_cells});
    }

    StackShape shape_;
    Heads heads_{};
    const float* bias_ = nullptr;
    int64_t bias_size_ = 0;
    int64_t size_ = 0;
    EmbedParams embed_{};
    LayersParams params_{};
};

}  // namespace pybeam
