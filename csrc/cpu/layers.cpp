#include "../params/layers.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../dispatch.h"
#include "../params/layer_norm.h"
#include "sublayers.h"

namespace pybeam {
namespace {

// Memory between the sublayers.
struct Buffers {
    Buffers(const LayersParams& params, Arrays& arrays)
        : x(arrays.floats(params.size)),
          normal(arrays.floats(params.size)),
          qkv(arrays.floats(3 * params.attended_size)),
          attended(arrays.floats(params.attended_size)),
          inner(arrays.floats((params.is_gated ? 2 : 1) * params.inner_size)),
          prepared(arrays, std::max({params.size, params.inner_size, params.attended_size})) {}

    float *x, *normal, *qkv, *attended, *inner;
    PreparedRows prepared;
};

// The work of one member of the team: the same as that of the others, with some of the tasks.
class Member : Sublayers {
  public:
    Member(const LayersParams& params, const Buffers& buffers, const Team& team)
        : Sublayers(team, params.num_rows, buffers.prepared),
          p_(params),
          b_(buffers),
          x_(params.x == nullptr ? buffers.x : params.x) {}

    void run() {
        if (p_.embed != nullptr) embed();
        for (size_t i = 0; i < p_.layers.size(); ++i) run_layer(i);
        finish();
    }

  private:
    void embed() {
        EmbedParams params = *p_.embed;
        params.y = x_;
        for_rows([&](int64_t row) { embed_row(params, row); });
        if (p_.embedding_norm.weight != nullptr) waiting_ = &p_.embedding_norm;
    }

    void run_layer(size_t i) {
        const LayerWeights& layer = p_.layers[i];
        const int64_t size = p_.attended_size;
        multiply(layer.qkv, input_norm(layer.self_norm), x_, b_.qkv);
        if (p_.own_pool.is_there) {
            write_cells(i);
            attend(p_.own, i, p_.own_pool, b_.qkv, 3 * size, b_.attended);
        } else {
            attend_rows();
        }
        add(layer.self_out, b_.attended);
        behind(layer.self_norm);
        if (p_.cross_pool.is_there) {
            multiply(layer.cross_query, input_norm(layer.cross_norm), x_, b_.qkv);
            attend(p_.cross, i, p_.cross_pool, b_.qkv, size, b_.attended);
            add(layer.cross_out, b_.attended);
            behind(layer.cross_norm);
        }
        run_inner(layer);
        behind(layer.inner_norm);
    }

    void run_inner(const LayerWeights& layer) {
        const NormWeights* norm = input_norm(layer.inner_norm);
        if (!p_.is_gated) {
            multiply(layer.inner, norm, x_, b_.inner, p_.activation);
            return add(layer.inner_out, b_.inner);
        }
        multiply(layer.inner, norm, x_, b_.inner);
        gate(p_.activation, b_.inner, p_.inner_size);
        add(layer.inner_out, b_.inner, 2 * p_.inner_size);
    }

    // The norm before a sublayer; null: x is its input.
    const NormWeights* input_norm(const NormWeights& norm) const {
        return p_.is_pre_norm ? &norm : nullptr;
    }

    // The norm behind a sublayer waits for the rows to be read.
    void behind(const NormWeights& norm) {
        if (!p_.is_pre_norm) waiting_ = &norm;
    }

    // y = f(W x + b), x normalised first where there is a norm.
    void multiply(const LinearWeights& weights, const NormWeights* norm, float* x, float* y,
                  Activation activation = Activation::kNone) {
        const float* input = norm == nullptr ? x : b_.normal;
        run_product(product(weights, input, y, activation, false), [&](int64_t row) {
            normalise_waiting(row);
            if (norm != nullptr) normalise(*norm, row, x, b_.normal);
        });
        waiting_ = nullptr;
    }

    // x += W y + b. Rows of y are `stride` apart; 0: they stand side by side.
    void add(const LinearWeights& weights, const float* y, int64_t stride = 0) {
        run_product(product(weights, y, x_, Activation::kNone, true, stride), NoNorm());
    }

    void write_cells(size_t layer) {
        const int64_t size = 2 * p_.attended_size;  // of a key and a value
        float* const pool =
            static_cast<float*>(p_.own_pool.data) + layer * p_.own_pool.layer_stride;
        for_rows([&](int64_t row) {
            if (p_.cell[row] < 0) return;
            std::memcpy(pool + p_.cell[row] * size,
                        b_.qkv + row * 3 * p_.attended_size + p_.attended_size,
                        size * sizeof(float));
        });
    }

    // Attention of an encoder: cells are rows.
    void attend_rows() {
        TreeAttentionParams params = p_.own;
        const int64_t size = p_.attended_size;
        params.key = b_.qkv + size;
        params.value = b_.qkv + 2 * size;
        params.key_cell_stride = params.value_cell_stride = 3 * size;
        run_attention(params, b_.qkv, 3 * size, b_.attended);
    }

    void finish() {
        const bool has_norm = p_.final_norm.weight != nullptr;
        if (p_.output.weight != nullptr) {
            multiply(p_.output, has_norm ? &p_.final_norm : nullptr, x_, p_.out);
            return;
        }
        for_rows([&](int64_t row) {
            normalise_waiting(row);
            if (has_norm) return normalise(p_.final_norm, row, x_, p_.out);
            std::memcpy(p_.out + row * p_.size, x_ + row * p_.size, p_.size * sizeof(float));
        });
    }

    void normalise_waiting(int64_t row) const {
        if (waiting_ != nullptr) normalise(*waiting_, row, x_, x_);
    }

    void normalise(const NormWeights& norm, int64_t row, const float* x, float* y) const {
        if (norm.bias == nullptr) {
            const int64_t first = row * p_.size;
            return kernels().rms_norm_row(x + first, norm.weight, p_.epsilon, p_.size, y + first);
        }
        LayerNormParams params{};
        params.x = x;
        params.x_stride = params.size = p_.size;
        params.weight = norm.weight;
        params.bias = norm.bias;
        params.epsilon = p_.epsilon;
        params.y = y;
        kernels().normalise_row(params, row);
    }

    const LayersParams& p_;
    const Buffers& b_;
    float* const x_;
    const NormWeights* waiting_ = nullptr;  // x has not been normalised yet
};

int64_t work_of(const LayersParams& params) {
    int64_t work = pybeam::work_of(params.output);
    for (const LayerWeights& layer : params.layers) {
        for (const LinearWeights* weights : {&layer.qkv, &layer.self_out, &layer.cross_query,
                                             &layer.cross_out, &layer.inner, &layer.inner_out}) {
            work += pybeam::work_of(*weights);
        }
    }
    return work * params.num_rows;
}

void check(const LayersParams& params) {
    if (params.embed != nullptr) check_embed(*params.embed);
    check_addresses(params.own);
    if (params.cross_pool.is_there) check_addresses(params.cross);
    if (params.own_pool.is_there) check_cells(params.own_pool, params.cell, params.num_rows);
}

}  // namespace

void launch_layers(const LayersParams& params) {
    if (params.num_rows == 0) return;
    check(params);
    run_members<Member, Buffers>(params, params.own, work_of(params));
}

}  // namespace pybeam
