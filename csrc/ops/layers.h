// The layers of a transformer in one call.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "../params/layers.h"
#include "check.h"
#include "embed.h"
#include "linear.h"
#include "prompts.h"
#include "sublayers.h"

namespace pybeam {

// The shapes and facts of a stack.
struct StackShape {
    int64_t inner_size;
    Activation activation;
    bool is_gated;     // inner layers have twice the columns: gates, then what they gate
    bool is_parallel;  // inner layers read what attention reads
    bool has_cross;    // a decoder's layers attend over encoder states
    double epsilon;
    Heads heads;
    double scale;            // of queries times keys
    double soft_cap;         // of scores, 0: none
    double output_soft_cap;  // of logits, 0: none
    int64_t num_columns;     // of the output layer, 0: there is none
    double embedding_scale;
    int64_t num_tokens;           // of the token table, 0: there is none
    int64_t skipped_id;           // see `EmbedParams`
    int64_t bias_origin;          // the column of position biases for distance 0
    int64_t num_tables;           // of rotary embeddings
    std::vector<int32_t> window;  // by layer, 0: none
    std::vector<int32_t> rotary;  // by layer, which table; -1: none
};

// The cells that rows attend over in one call.
struct StackCells {
    // [layers, cells, 2, key heads, head size]. An encoder whose output layer gives keys and values
    // of a decoder writes them to the second.
    OptionalTensor own_pool, cross_pool;
    OptionalTensor cell;  // [rows], where each row's keys and values go
    // `sources` are encoder states in `cross_pool`, or prompts in `own_pool`, behind which all
    // positions of rows are counted
    std::vector<Tensor> own, sources;
    // of rows, and of what stands in the cells of `own`, where distances matter. With the first
    // alone, rows are those of prompts: each sees the cells of its prompt up to its own position.
    OptionalTensor position, cell_position;
};

// All that a call is given.
struct LayerArguments {
    OptionalTensor out;          // there may be more rows, which stay; null: keys and values alone
    std::vector<Tensor> inputs;  // x, or tokens and places
    StackCells cells;
};

// The layers of a transformer, whose weights are checked once.
class LayerProgram {
  public:
    // The weights must live as long as the program.
    LayerProgram(const std::vector<Tensor>& weights, const StackShape& shape) : shape_(shape) {
        check_shape();
        WeightReader reader(weights);
        read_embedding(reader);
        params_.activation = shape.activation;
        params_.is_gated = shape.is_gated;
        params_.is_parallel = shape.is_parallel;
        params_.epsilon = static_cast<float>(shape.epsilon);
        params_.output_soft_cap = static_cast<float>(shape.output_soft_cap);
        params_.inner_size = shape.inner_size;
        params_.num_heads = shape.heads.num;
        params_.num_key_heads = shape.heads.num_keys;
        params_.head_size = shape.heads.size;
        params_.embedding_norm = reader.norm(params_.size);
        params_.final_norm = reader.norm(params_.size);
        params_.output = reader.linear(shape.num_columns, params_.size);
        PYBEAM_CHECK_VALUE((params_.output.weight != nullptr) == (shape.num_columns > 0),
                           "`weights` must have an output layer of ", shape.num_columns,
                           " columns, and none for 0");
        read_bias(reader);
        for (int64_t i = 0; i < shape.num_tables; ++i) params_.rotary.push_back(rotary(reader));
        for (size_t i = 0; i < shape.window.size(); ++i) params_.layers.push_back(layer(reader, i));
        PYBEAM_CHECK_VALUE(reader.is_done(), "`weights` has too many tensors: ", weights.size());
    }

    // Computes `out`, or keys and values alone without it. With `select`, which says nothing about
    // logits yet, logits are chosen among, and `out` has no meaning then.
    void run(const LayerArguments& given, SelectParams* select = nullptr) const {
        const std::vector<Tensor>& inputs = given.inputs;
        PYBEAM_CHECK_VALUE(inputs.size() == 1 || inputs.size() == 2,
                           "inputs must be x, or tokens and places");
        if (inputs.size() == 1) return run(given.out, inputs[0], given.cells, select);
        run(given.out, inputs[0], inputs[1], given.cells, select);
    }

    // The layer that computes logits, if there is one.
    const LinearWeights& output() const { return params_.output; }

  private:
    // Runs the layers on tokens [rows] at places [rows] in the tables of positions.
    void run(const OptionalTensor& out, const Tensor& token, const Tensor& place,
             const StackCells& cells, SelectParams* select) const {
        PYBEAM_CHECK_VALUE(shape_.num_tokens > 0, "`weights` must have a token table");
        check_dim("token", token, 1);
        const int64_t num_rows = token.size(0);
        EmbedParams embed = embed_;
        embed.token = state<int32_t>("token", token, ScalarType::kInt32, {num_rows});
        embed.position = state<int32_t>("place", place, ScalarType::kInt32, {num_rows});
        embed.num_rows = num_rows;
        embed.num_threads = 1;
        LayersParams params = params_of(out, num_rows, cells);
        if (!shape_.has_cross && !cells.sources.empty()) {
            static thread_local PromptRows rows;
            rows.put_before(prompts_of(cells.sources), &embed, &params.own);
        }
        params.embed = &embed;
        params.place = embed.position;
        if (cells.cell_position.has_value()) place_rows(params, *cells.cell_position);
        launch(std::move(params), select);
    }

    // Runs the layers on x [rows, size], which is overwritten.
    void run(const OptionalTensor& out, const Tensor& x, const StackCells& cells,
             SelectParams* select) const {
        PYBEAM_CHECK_VALUE(params_.rotary.empty(), "rotary embeddings need tokens and places");
        check_dim("x", x, 2);
        LayersParams params = params_of(out, x.size(0), cells);
        params.x = state<float>("x", x, ScalarType::kFloat32, {x.size(0), params.size});
        params.embedding_norm = {};
        launch(std::move(params), select);
    }

    // Stores the positions of a decoder's rows at their cells.
    static void place_rows(const LayersParams& params, const Tensor& cell_position) {
        if (!params.own_pool.is_there || params.own.position == nullptr) return;
        for (int64_t row = 0; row < params.num_rows; ++row) {
            const int32_t cell = params.cell[row];
            PYBEAM_CHECK(cell >= -1 && cell < cell_position.numel(), "`cell` is out of range");
            if (cell >= 0) data<int32_t>(cell_position)[cell] = params.own.position[row];
        }
    }

    void launch(LayersParams params, SelectParams* select) const {
        if (select == nullptr) return launch_layers(params);
        PYBEAM_CHECK_VALUE(params.out != nullptr && params.output.weight != nullptr,
                           "the output layer must compute logits");
        select->logits = params.out;
        select->dtype = DType::kFloat32;
        select->row_stride = select->vocab_size = params.output.num_columns;
        if (select->columns != nullptr) {
            select->columns->vocab_size = params.output.num_columns;
            select->vocab_size = select->columns->num_columns;
        }
        select->num_rows = params.num_rows;
        select->num_threads = params.num_threads;
        launch_layers(std::move(params), *select);
    }

    void check_shape() const {
        const Heads& heads = shape_.heads;
        PYBEAM_CHECK_VALUE(shape_.inner_size > 0 && shape_.num_columns >= 0,
                           "the numbers of a stack must be positive, but it has an inner size of ",
                           shape_.inner_size, " and ", shape_.num_columns, " columns");
        PYBEAM_CHECK_VALUE(heads.num_keys > 0 && heads.num > 0 && heads.num % heads.num_keys == 0,
                           "`num_heads` must be a multiple of `num_key_heads`, but they are ",
                           heads.num, " and ", heads.num_keys);
        PYBEAM_CHECK_VALUE(heads.size > 0, "`head_size` must be positive, but is ", heads.size);
        PYBEAM_CHECK_VALUE(shape_.window.size() == shape_.rotary.size(),
                           "`window` and `rotary` must have an entry per layer, but have ",
                           shape_.window.size(), " and ", shape_.rotary.size());
        for (const int32_t window : shape_.window) {
            PYBEAM_CHECK_VALUE(window >= 0, "`window` must be at least 0, but is ", window);
        }
        for (const int32_t table : shape_.rotary) {
            PYBEAM_CHECK_VALUE(table >= -1 && table < shape_.num_tables,
                               "`rotary` must be from 0 to ", shape_.num_tables - 1,
                               ", or -1 for none, but is ", table);
        }
    }

    void read_embedding(WeightReader& reader) {
        const Tensor &table = reader.next(), &scale = reader.next(), &positions = reader.next();
        check_dim("position_table", positions, 2);
        params_.size = positions.size(1);
        if (shape_.num_tokens == 0) return;
        embed_ = embed_of(table, WeightReader::some(scale), shape_.num_tokens, positions,
                          shape_.embedding_scale);
        embed_.skipped_id = static_cast<int32_t>(shape_.skipped_id);
    }

    // Reads the numbers [heads, distances] that self-attention adds to scores.
    void read_bias(WeightReader& reader) {
        const Tensor& bias = reader.next();
        if (bias.numel() == 0) return;
        check_dim("bias", bias, 2);
        bias_size_ = bias.size(1);
        bias_ = state<float>("bias", bias, ScalarType::kFloat32, {shape_.heads.num, bias_size_});
    }

    RotaryTable rotary(WeightReader& reader) const {
        const Tensor &cos = reader.next(), &sin = reader.next();
        check_dim("cos", cos, 2);
        const int64_t num_positions = cos.size(0), half = cos.size(1);
        PYBEAM_CHECK_VALUE(2 * half <= shape_.heads.size, "`cos` must have at most ",
                           shape_.heads.size / 2, " columns, but has ", half);
        return {state<float>("cos", cos, ScalarType::kFloat32, {num_positions, half}),
                state<float>("sin", sin, ScalarType::kFloat32, {num_positions, half}),
                num_positions, half};
    }

    LayerWeights layer(WeightReader& reader, size_t i) const {
        const Heads& heads = shape_.heads;
        const int64_t size = params_.size, attended = params_.attended_size();
        LayerWeights layer{};
        layer.self_norms = reader.norms(size);
        layer.qkv = reader.matrix(params_.qkv_size(), size);
        layer.query_norm = reader.norm(heads.size);
        layer.key_norm = reader.norm(heads.size);
        layer.self_out = reader.matrix(size, attended);
        if (shape_.has_cross) {
            layer.cross_norms = reader.norms(size);
            layer.cross_query = reader.matrix(attended, size);
            layer.cross_out = reader.matrix(size, attended);
        }
        layer.inner_norms = reader.norms(size);
        layer.inner = reader.matrix((shape_.is_gated ? 2 : 1) * shape_.inner_size, size);
        layer.inner_out = reader.matrix(size, shape_.inner_size);
        layer.window = shape_.window[i];
        layer.rotary = shape_.rotary[i];
        PYBEAM_CHECK_VALUE(!shape_.is_parallel || (layer.self_norms.added.weight == nullptr &&
                                                   layer.inner_norms.added.weight == nullptr),
                           "`weights` must have no norms of what parallel sublayers add");
        return layer;
    }

    LayersParams params_of(const OptionalTensor& out, int64_t num_rows,
                           const StackCells& cells) const {
        const bool keeps_states = !shape_.has_cross && cells.cross_pool.has_value();
        PYBEAM_CHECK_VALUE((cells.own_pool.has_value() || keeps_states) == cells.cell.has_value(),
                           keeps_states ? "`cross_pool`" : "`own_pool`", " and `cell` go together");
        PYBEAM_CHECK_VALUE(cells.cross_pool.has_value() || !shape_.has_cross,
                           "`cross_pool` must be given for a decoder");
        PYBEAM_CHECK_VALUE(!keeps_states || !(cells.own_pool.has_value() || out.has_value()),
                           "`own_pool` and `out` must be left out where an encoder has a pool");
        LayersParams params = params_;
        params.num_rows = num_rows;
        if (out.has_value()) {
            const int64_t columns = shape_.num_columns == 0 ? params.size : shape_.num_columns;
            check_dim("out", *out, 2);
            PYBEAM_CHECK_VALUE(out->size(0) >= num_rows, "`out` must have at least ", num_rows,
                               " rows, but has ", out->size(0));
            params.out = state<float>("out", *out, ScalarType::kFloat32, {out->size(0), columns});
        }
        const int64_t layers = static_cast<int64_t>(params.layers.size());
        const Heads& heads = shape_.heads;
        params.own_pool = pool_of("own_pool", cells.own_pool, layers, heads);
        if (keeps_states) {
            params.state_pool = state_pool(*cells.cross_pool);
        } else {
            params.cross_pool = pool_of("cross_pool", cells.cross_pool, layers, heads);
        }
        const int64_t num_cells = cells.own_pool.has_value() ? params.own_pool.num_cells : num_rows;
        params.own = attention_of(cells.own, num_rows, heads, num_cells, shape_.scale);
        params.own.soft_cap = static_cast<float>(shape_.soft_cap);
        set_positions(cells, &params.own);
        if (cells.cell.has_value()) {
            params.cell = state<int32_t>("cell", *cells.cell, ScalarType::kInt32, {num_rows});
        }
        if (shape_.has_cross) {
            params.cross = attention_of(cells.sources, num_rows, heads, params.cross_pool.num_cells,
                                        shape_.scale);
        }
        params.num_threads = num_threads();
        return params;
    }

    // A pool for all that the output layer gives, whatever the layers and heads of a decoder are.
    LayerPool state_pool(const Tensor& pool) const {
        check_dim("cross_pool", pool, 5);
        const int64_t layers = pool.size(0), heads = pool.size(3), size = pool.size(4);
        const int64_t columns = 2 * layers * heads * size;
        PYBEAM_CHECK_VALUE(columns > 0 && columns == shape_.num_columns,
                           "`cross_pool` must have room for the ", shape_.num_columns,
                           " columns of the output layer, but is ", pool.sizes());
        return pool_of("cross_pool", pool, layers, {heads, heads, size});
    }

    // Says where rows and cells stand. A prompt's cells are in the order of their positions.
    void set_positions(const StackCells& cells, TreeAttentionParams* own) const {
        const bool has_rows = cells.position.has_value();
        const bool has_cells = cells.cell_position.has_value();
        own->in_order = cells.own_pool.has_value() && has_rows && !has_cells &&
                        own->mask == nullptr && own->path == nullptr;
        const bool has_windows = std::any_of(shape_.window.begin(), shape_.window.end(),
                                             [](int32_t window) { return window != 0; });
        PYBEAM_CHECK_VALUE(
            own->in_order || (has_rows && has_cells) || !(has_windows || bias_ != nullptr),
            "`position` and `cell_position` must be given where there are windows "
            "or biases");
        own->bias = bias_;
        own->bias_size = bias_size_;
        own->bias_origin = static_cast<int32_t>(shape_.bias_origin);
        if (has_rows) {
            own->position =
                state<int32_t>("position", *cells.position, ScalarType::kInt32, {own->num_rows});
        }
        if (has_cells) {
            own->cell_position = state<int32_t>("cell_position", *cells.cell_position,
                                                ScalarType::kInt32, {own->num_pool_cells});
        }
    }

    StackShape shape_;
    const float* bias_ = nullptr;
    int64_t bias_size_ = 0;
    EmbedParams embed_{};
    LayersParams params_{};
};

}  // namespace pybeam
