// The layers of a decoder-only transformer in one call.
#pragma once

#include <algorithm>
#include <vector>

#include "../params/causal_layers.h"
#include "check.h"
#include "embed.h"
#include "sublayers.h"

namespace pybeam {

// The shapes and facts of a decoder-only stack.
struct CausalShape {
    int64_t inner_size;
    Activation activation;  // of gates
    double epsilon;
    Heads heads;
    double scale;            // of queries times keys
    double soft_cap;         // of scores, 0: none
    double output_soft_cap;  // of logits, 0: none
    int64_t num_columns;     // of the output layer, 0: there is none
    double embedding_scale;
    int64_t num_tokens;           // of the token table
    int64_t num_tables;           // of rotary embeddings
    std::vector<int32_t> window;  // by layer, 0: none
    std::vector<int32_t> rotary;  // by layer, which table
};

// The cells that rows attend over in one call. Without masks and positions of cells, they are those
// of the prompt up to the rows' own positions.
struct CausalCells {
    Tensor pool;  // [layers, cells, 2, key heads, head size]
    Tensor cell;  // [rows], where each row's key and value go
    std::vector<Tensor> seen;
    OptionalTensor position, cell_position;
};

// The layers of a decoder-only transformer, whose weights are checked once.
class CausalProgram {
  public:
    // The weights must live as long as the program.
    CausalProgram(const std::vector<Tensor>& weights, const CausalShape& shape) : shape_(shape) {
        check_shape();
        WeightReader reader(weights);
        const Tensor &table = reader.next(), &scale = reader.next(), &no_positions = reader.next();
        params_.embed = embed_of(table, WeightReader::some(scale), shape.num_tokens, no_positions,
                                 shape.embedding_scale);
        params_.size = params_.embed.size;
        params_.activation = shape.activation;
        params_.epsilon = static_cast<float>(shape.epsilon);
        params_.output_soft_cap = static_cast<float>(shape.output_soft_cap);
        params_.inner_size = shape.inner_size;
        params_.num_heads = shape.heads.num;
        params_.num_key_heads = shape.heads.num_keys;
        params_.head_size = shape.heads.size;
        params_.final_norm = needed(reader.rms_norm(params_.size), "a final norm");
        params_.output = reader.linear(shape.num_columns, params_.size);
        PYBEAM_CHECK_VALUE((params_.output.weight != nullptr) == (shape.num_columns > 0),
                           "`weights` must have an output layer of ", shape.num_columns,
                           " columns, and none for 0");
        for (int64_t i = 0; i < shape.num_tables; ++i) params_.rotary.push_back(rotary(reader));
        for (size_t i = 0; i < shape.window.size(); ++i) params_.layers.push_back(layer(reader, i));
        PYBEAM_CHECK_VALUE(reader.is_done(), "`weights` has too many tensors: ", weights.size());
    }

    // Runs the layers on tokens [rows] with rows [rows] of the rotary tables. Without `out` only
    // keys and values are written.
    void run(const OptionalTensor& out, const Tensor& token, const Tensor& rotary_row,
             const CausalCells& cells) const {
        check_dim("token", token, 1);
        const int64_t num_rows = token.size(0);
        const auto ints = [&](const char* name, const Tensor& tensor) {
            return state<int32_t>(name, tensor, ScalarType::kInt32, {num_rows});
        };
        CausalLayersParams params = params_;
        params.num_rows = params.embed.num_rows = num_rows;
        params.embed.token = ints("token", token);
        params.embed.num_threads = 1;
        params.rotary_row = ints("rotary_row", rotary_row);
        params.cell = ints("cell", cells.cell);
        if (out.has_value()) {
            const int64_t columns = shape_.num_columns == 0 ? params.size : shape_.num_columns;
            params.out = state<float>("out", *out, ScalarType::kFloat32, {num_rows, columns});
        }
        const int64_t num_layers = static_cast<int64_t>(params.layers.size());
        params.pool = pool_of("pool", cells.pool, num_layers, shape_.heads, false);
        params.seen =
            attention_of(cells.seen, num_rows, shape_.heads, params.pool.num_cells, shape_.scale);
        params.seen.soft_cap = static_cast<float>(shape_.soft_cap);
        set_positions(cells, &params.seen);
        params.num_threads = num_threads();
        launch_causal_layers(params);
    }

  private:
    void check_shape() const {
        const Heads& heads = shape_.heads;
        PYBEAM_CHECK_VALUE(shape_.inner_size > 0 && shape_.num_columns >= 0,
                           "the numbers of a stack must be positive, but it has an inner size of ",
                           shape_.inner_size, " and ", shape_.num_columns, " columns");
        PYBEAM_CHECK_VALUE(heads.num_keys > 0 && heads.num > 0 && heads.num % heads.num_keys == 0,
                           "`num_heads` must be a multiple of `num_key_heads`, but they are ",
                           heads.num, " and ", heads.num_keys);
        PYBEAM_CHECK_VALUE(heads.size > 0 && heads.size % 2 == 0,
                           "`head_size` must be even and positive, but is ", heads.size);
        PYBEAM_CHECK_VALUE(shape_.window.size() == shape_.rotary.size(),
                           "`window` and `rotary` must have an entry per layer, but have ",
                           shape_.window.size(), " and ", shape_.rotary.size());
        for (const int32_t window : shape_.window) {
            PYBEAM_CHECK_VALUE(window >= 0, "`window` must be at least 0, but is ", window);
        }
        for (const int32_t table : shape_.rotary) {
            PYBEAM_CHECK_VALUE(table >= 0 && table < shape_.num_tables,
                               "`rotary` must be from 0 to ", shape_.num_tables - 1, ", but is ",
                               table);
        }
    }

    template <class Weights>
    static Weights needed(const Weights& weights, const char* name) {
        PYBEAM_CHECK_VALUE(weights.weight != nullptr, "`weights` lacks ", name);
        return weights;
    }

    RotaryTable rotary(WeightReader& reader) const {
        const Tensor &cos = reader.next(), &sin = reader.next();
        check_dim("cos", cos, 2);
        const int64_t num_positions = cos.size(0), half = shape_.heads.size / 2;
        return {state<float>("cos", cos, ScalarType::kFloat32, {num_positions, half}),
                state<float>("sin", sin, ScalarType::kFloat32, {num_positions, half}),
                num_positions};
    }

    CausalLayerWeights layer(WeightReader& reader, size_t i) const {
        const Heads& heads = shape_.heads;
        const int64_t size = params_.size;
        const auto norm = [&](int64_t of) { return reader.rms_norm(of); };
        const auto linear = [&](int64_t columns, int64_t depth) {
            return needed(reader.linear(columns, depth), "a matrix of a layer");
        };
        CausalLayerWeights layer{};
        layer.self_norm = needed(norm(size), "a norm of a layer");
        layer.qkv = linear((heads.num + 2 * heads.num_keys) * heads.size, size);
        layer.query_norm = norm(heads.size);
        layer.key_norm = norm(heads.size);
        layer.self_out = linear(size, heads.num * heads.size);
        layer.after_self_norm = norm(size);
        layer.inner_norm = needed(norm(size), "a norm of a layer");
        layer.gate_up = linear(2 * shape_.inner_size, size);
        layer.inner_out = linear(size, shape_.inner_size);
        layer.after_inner_norm = norm(size);
        layer.window = shape_.window[i];
        layer.rotary = shape_.rotary[i];
        return layer;
    }

    // Says where rows and cells stand. A prompt's cells are in the order of their positions.
    void set_positions(const CausalCells& cells, TreeAttentionParams* seen) const {
        const bool sees_all = seen->mask == nullptr && seen->path == nullptr;
        seen->in_order = sees_all && !cells.cell_position.has_value();
        const bool has_windows = std::any_of(shape_.window.begin(), shape_.window.end(),
                                             [](int32_t window) { return window != 0; });
        PYBEAM_CHECK_VALUE(cells.position.has_value() || !(seen->in_order || has_windows),
                           "`position` must be given for prompts, and where layers have windows");
        PYBEAM_CHECK_VALUE(cells.cell_position.has_value() || seen->in_order || !has_windows,
                           "`cell_position` must be given where layers have windows");
        if (cells.position.has_value()) {
            seen->position =
                state<int32_t>("position", *cells.position, ScalarType::kInt32, {seen->num_rows});
        }
        if (cells.cell_position.has_value()) {
            seen->cell_position = state<int32_t>("cell_position", *cells.cell_position,
                                                 ScalarType::kInt32, {seen->num_pool_cells});
        }
    }

    CausalShape shape_;
    CausalLayersParams params_{};
};

}  // namespace pybeam
