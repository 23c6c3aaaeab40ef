#include "../params/causal_layers.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../dispatch.h"
#include "sublayers.h"

namespace pybeam {
namespace {

// Memory between the sublayers.
struct Buffers {
    Buffers(const CausalLayersParams& p, Arrays& arrays)
        : x(arrays.floats(p.size)),
          normal(arrays.floats(p.size)),
          added(arrays.floats(p.size)),
          qkv(arrays.floats((p.num_heads + 2 * p.num_key_heads) * p.head_size)),
          attended(arrays.floats(p.num_heads * p.head_size)),
          inner(arrays.floats(2 * p.inner_size)),
          prepared(arrays, std::max({p.size, p.inner_size, p.num_heads * p.head_size})) {}

    float *x, *normal, *added, *qkv, *attended, *inner;
    PreparedRows prepared;
};

class CausalMember : Sublayers {
  public:
    CausalMember(const CausalLayersParams& params, const Buffers& buffers, const Team& team)
        : Sublayers(team, params.num_rows, buffers.prepared), p_(params), b_(buffers) {}

    void run() {
        embed();
        for (size_t i = 0; i < p_.layers.size(); ++i) {
            const CausalLayerWeights& layer = p_.layers[i];
            read(layer.self_norm, layer.qkv, b_.qkv);
            turn(layer, i);
            // nobody reads what follows the last keys and values
            if (p_.out == nullptr && i + 1 == p_.layers.size()) return;
            attend_layer(layer, i);
            add(layer.self_out, b_.attended, 0, layer.after_self_norm);
            read(layer.inner_norm, layer.gate_up, b_.inner);
            gate(p_.activation, b_.inner, p_.inner_size);
            add(layer.inner_out, b_.inner, 2 * p_.inner_size, layer.after_inner_norm);
        }
        finish();
    }

  private:
    void embed() {
        EmbedParams params = p_.embed;
        params.y = b_.x;
        for_rows([&](int64_t row) { embed_row(params, row); });
    }

    // y = W norm(x) + b.
    void read(const NormWeights& norm, const LinearWeights& weights, float* y) {
        const auto before = [&](int64_t row) {
            add_waiting(row);
            normalise(norm, b_.x + row * p_.size, p_.size, b_.normal + row * p_.size);
        };
        run_product(product(weights, b_.normal, y, Activation::kNone, false), before);
        waiting_ = nullptr;
    }

    // x += W y + b, or what a norm makes of it.
    void add(const LinearWeights& weights, const float* y, int64_t stride,
             const NormWeights& after) {
        const bool adds = after.weight == nullptr;
        float* to = adds ? b_.x : b_.added;
        run_product(product(weights, y, to, Activation::kNone, adds, stride), NoNorm());
        if (!adds) waiting_ = &after;
    }

    // A norm behind a sublayer waits for the rows to be read.
    void add_waiting(int64_t row) const {
        if (waiting_ == nullptr) return;
        float *x = b_.x + row * p_.size, *added = b_.added + row * p_.size;
        normalise(*waiting_, added, p_.size, added);
        for (int64_t d = 0; d < p_.size; ++d) x[d] += added[d];
    }

    // Logits, or the last states where there is no output layer.
    void finish() {
        if (p_.output.weight == nullptr) {
            for_rows([&](int64_t row) {
                add_waiting(row);
                normalise(p_.final_norm, b_.x + row * p_.size, p_.size, p_.out + row * p_.size);
            });
            return;
        }
        read(p_.final_norm, p_.output, p_.out);
        if (p_.output_soft_cap != 0.0f) cap();
    }

    // Norms and rotary embeddings of queries and keys, while they are in the cache. Keys and values
    // go to their cells.
    void turn(const CausalLayerWeights& layer, size_t i) const {
        const int64_t size = p_.head_size, keys = p_.num_key_heads * size;
        const int64_t queries = p_.num_heads * size;
        float* const pool = static_cast<float*>(p_.pool.data) + i * p_.pool.layer_stride;
        const auto turn_row = [&](int64_t row) {
            float* const query = b_.qkv + row * (queries + 2 * keys);
            float* const key = query + queries;
            for (int64_t h = 0; h < p_.num_heads; ++h) {
                turn_head(layer, layer.query_norm, row, query + h * size);
            }
            for (int64_t h = 0; h < p_.num_key_heads; ++h) {
                turn_head(layer, layer.key_norm, row, key + h * size);
            }
            if (p_.cell[row] < 0) return;
            std::memcpy(pool + p_.cell[row] * 2 * keys, key, 2 * keys * sizeof(float));
        };
        for_rows(turn_row, 1);
    }

    void turn_head(const CausalLayerWeights& layer, const NormWeights& norm, int64_t row,
                   float* x) const {
        const RotaryTable& table = p_.rotary[layer.rotary];
        const int64_t half = p_.head_size / 2, angles = p_.rotary_row[row] * half;
        if (norm.weight != nullptr) normalise(norm, x, p_.head_size, x);
        kernels().rotate_head(x, table.cos + angles, table.sin + angles, half, x);
    }

    void attend_layer(const CausalLayerWeights& layer, size_t i) const {
        TreeAttentionParams params = p_.seen;
        params.window = layer.window;
        const int64_t stride = (p_.num_heads + 2 * p_.num_key_heads) * p_.head_size;
        attend(params, i, p_.pool, b_.qkv, stride, b_.attended);
    }

    void normalise(const NormWeights& norm, const float* x, int64_t size, float* y) const {
        kernels().rms_norm_row(x, norm.weight, p_.epsilon, size, y);
    }

    void cap() const {
        constexpr int64_t kColumns = 4096;  // of one task
        const int64_t size = num_rows_ * p_.output.num_columns;
        team_.for_each((size + kColumns - 1) / kColumns, [&](int64_t task) {
            const int64_t first = task * kColumns;
            kernels().soft_cap(p_.output_soft_cap, std::min(kColumns, size - first),
                               p_.out + first);
        });
    }

    const CausalLayersParams& p_;
    const Buffers& b_;
    const NormWeights* waiting_ = nullptr;  // `added` has not been added yet
};

int64_t work_of(const CausalLayersParams& params) {
    int64_t work = params.out == nullptr ? 0 : work_of(params.output);
    for (const CausalLayerWeights& layer : params.layers) {
        for (const LinearWeights* weights :
             {&layer.qkv, &layer.self_out, &layer.gate_up, &layer.inner_out}) {
            work += pybeam::work_of(*weights);
        }
    }
    return work * params.num_rows;
}

void check(const CausalLayersParams& params) {
    check_embed(params.embed);
    check_addresses(params.seen);
    check_cells(params.pool, params.cell, params.num_rows);
    for (const RotaryTable& table : params.rotary) {
        check_positions(params.rotary_row, params.num_rows, table);
    }
}

}  // namespace

void launch_causal_layers(const CausalLayersParams& params) {
    if (params.num_rows == 0) return;
    check(params);
    run_members<CausalMember, Buffers>(params, params.seen, work_of(params));
}

}  // namespace pybeam
