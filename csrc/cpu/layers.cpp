#include "../params/layers.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "../dispatch.h"
#include "../params/layer_norm.h"
#include "linear.h"
#include "numbers.h"
#include "team.h"
#include "tree_attention.h"

namespace pybeam {
namespace {

// Less work than this many multiply-adds in float32 is done by one thread: others would have to be
// woken.
constexpr int64_t kWorthTeam = 1 << 22;
// Rows of one task where each row is little work.
constexpr int64_t kRowsOfTask = 8;
// Larger memory is given back after the call.
constexpr size_t kMostKeptBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;  // of a cache line

struct NoNorm {};

// Memory between the sublayers.
struct Buffers {
    Buffers(const LayersParams& params, char* memory) {
        const int64_t rows = params.num_rows;
        const auto take = [&](int64_t bytes) {
            char* taken = memory == nullptr ? nullptr : memory + size;
            size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
            return taken;
        };
        const auto floats = [&](int64_t size) {
            return reinterpret_cast<float*>(take(rows * size * int64_t{sizeof(float)}));
        };
        x = floats(params.size);
        normal = floats(params.size);
        qkv = floats(3 * params.size);
        attended = floats(params.size);
        inner = floats(params.inner_size);
        scale = floats(1);
        offset = reinterpret_cast<int32_t*>(floats(1));
        prepared = take(rows * largest_stride(params));
    }

    // Memory needed, in bytes.
    static size_t bytes(const LayersParams& params) { return Buffers(params, nullptr).size; }

    static int64_t largest_stride(const LayersParams& params) {
        // bfloat16 takes most: two bytes a number or more
        const int64_t depth = std::max(params.size, params.inner_size);
        return prepared_stride(WeightType::kBFloat16, depth);
    }

    float *x, *normal, *qkv, *attended, *inner, *scale;
    int32_t* offset;
    char* prepared;
    size_t size = 0;  // of all
};

// Memory of a call, without meaning at first. Small blocks are kept for this thread's next
// call, because fresh memory costs a page fault every few rows.
class Memory {
  public:
    explicit Memory(size_t bytes) {
        static thread_local std::unique_ptr<char[]> kept;
        static thread_local size_t kept_size = 0;
        const size_t size = bytes + kAlignment;
        if (size > kMostKeptBytes) {
            once_ = std::make_unique_for_overwrite<char[]>(size);
        } else if (size > kept_size) {
            kept = std::make_unique_for_overwrite<char[]>(size);
            kept_size = size;
        }
        char* start = once_ != nullptr ? once_.get() : kept.get();
        data_ = start + (kAlignment - reinterpret_cast<size_t>(start) % kAlignment) % kAlignment;
    }

    char* data() const { return data_; }

  private:
    std::unique_ptr<char[]> once_;
    char* data_;
};

// The work of one member of the team: the same as that of the others, with some of the tasks.
class Member {
  public:
    Member(const LayersParams& params, const Buffers& buffers, const Team& team)
        : p_(params), b_(buffers), team_(team), x_(params.x == nullptr ? buffers.x : params.x) {}

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
        const int64_t d = p_.size;
        multiply(layer.qkv, input_norm(layer.self_norm), x_, b_.qkv);
        if (p_.own_pool.is_there) {
            write_cells(i);
            attend(p_.own, i, p_.own_pool, b_.qkv, 3 * d);
        } else {
            attend_rows();
        }
        add(layer.self_out, b_.attended);
        behind(layer.self_norm);
        if (p_.cross_pool.is_there) {
            multiply(layer.cross_query, input_norm(layer.cross_norm), x_, b_.qkv);
            attend(p_.cross, i, p_.cross_pool, b_.qkv, d);
            add(layer.cross_out, b_.attended);
            behind(layer.cross_norm);
        }
        multiply(layer.inner, input_norm(layer.inner_norm), x_, b_.inner, p_.activation);
        add(layer.inner_out, b_.inner);
        behind(layer.inner_norm);
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

    // x += W y + b.
    void add(const LinearWeights& weights, const float* y) {
        run_product(product(weights, y, x_, Activation::kNone, true), NoNorm());
    }

    template <class BeforeRow>
    void run_product(const LinearParams& params, const BeforeRow& before) {
        constexpr bool has_norm = !std::is_same_v<BeforeRow, NoNorm>;
        const LinearTasks tasks(params, team_.size());
        if (has_norm || tasks.prepares()) {
            for_rows([&](int64_t row) {
                if constexpr (has_norm) before(row);
                tasks.prepare(row);
            });
        }
        team_.for_each(tasks.size(), [&](int64_t task) { tasks.run(task); });
    }

    LinearParams product(const LinearWeights& weights, const float* x, float* y,
                         Activation activation, bool adds) const {
        LinearParams params{};
        params.x = x;
        params.x_stride = weights.depth;
        params.rounded_x = b_.prepared;
        params.int8_x = {reinterpret_cast<int8_t*>(b_.prepared),
                         prepared_stride(weights.type, weights.depth), b_.scale, b_.offset};
        params.weight = weights.weight;
        params.weight_type = weights.type;
        params.scale = weights.scale;
        params.bias = weights.bias;
        params.y = y;
        params.num_rows = p_.num_rows;
        params.depth = weights.depth;
        params.num_columns = weights.num_columns;
        params.activation = activation;
        params.adds = adds;
        return params;
    }

    void write_cells(size_t layer) {
        const int64_t size = 2 * p_.size;  // of a key and a value
        float* const pool =
            static_cast<float*>(p_.own_pool.data) + layer * p_.own_pool.layer_stride;
        for_rows([&](int64_t row) {
            if (p_.cell[row] < 0) return;
            std::memcpy(pool + p_.cell[row] * size, b_.qkv + row * 3 * p_.size + p_.size,
                        size * sizeof(float));
        });
    }

    void attend(TreeAttentionParams params, size_t layer, const LayerPool& pool, const float* query,
                int64_t query_stride) {
        const int64_t item = pool.dtype == DType::kFloat32 ? sizeof(float) : sizeof(BFloat16);
        const char* key = static_cast<const char*>(pool.data) + layer * pool.layer_stride * item;
        params.key = key;
        params.value = key + p_.size * item;
        params.cell_dtype = pool.dtype;
        params.key_cell_stride = params.value_cell_stride = 2 * p_.size;
        run_attention(params, query, query_stride);
    }

    // Attention of an encoder: cells are rows.
    void attend_rows() {
        TreeAttentionParams params = p_.own;
        params.key = b_.qkv + p_.size;
        params.value = b_.qkv + 2 * p_.size;
        params.key_cell_stride = params.value_cell_stride = 3 * p_.size;
        run_attention(params, b_.qkv, 3 * p_.size);
    }

    void run_attention(TreeAttentionParams& params, const float* query, int64_t query_stride) {
        params.query = query;
        params.query_row_stride = query_stride;
        params.query_head_stride = params.key_head_stride = params.value_head_stride =
            params.head_size;
        params.out = b_.attended;
        const AttentionTasks tasks(params, team_.size());
        team_.for_each(tasks.size(), [&](int64_t task) { tasks.run(task); });
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
        LayerNormParams params{};
        params.x = x;
        params.x_stride = params.size = p_.size;
        params.weight = norm.weight;
        params.bias = norm.bias;
        params.epsilon = p_.epsilon;
        params.y = y;
        kernels().normalise_row(params, row);
    }

    template <class Body>
    void for_rows(const Body& body) const {
        const int64_t tasks = (p_.num_rows + kRowsOfTask - 1) / kRowsOfTask;
        team_.for_each(tasks, [&](int64_t task) {
            const int64_t end = std::min(p_.num_rows, (task + 1) * kRowsOfTask);
            for (int64_t row = task * kRowsOfTask; row < end; ++row) body(row);
        });
    }

    const LayersParams& p_;
    const Buffers& b_;
    const Team& team_;
    float* const x_;
    const NormWeights* waiting_ = nullptr;  // x has not been normalised yet
};

// Multiply-adds in float32 that take as long.
int64_t work_of(const LinearWeights& weights) {
    const int64_t work = weights.num_columns * weights.depth;
    if (weights.type == WeightType::kInt8) return work / 4;
    return weights.type == WeightType::kBFloat16 ? work / 2 : work;
}

int64_t work_of(const LayersParams& params) {
    int64_t work = work_of(params.output);
    for (const LayerWeights& layer : params.layers) {
        for (const LinearWeights* weights : {&layer.qkv, &layer.self_out, &layer.cross_query,
                                             &layer.cross_out, &layer.inner, &layer.inner_out}) {
            work += work_of(*weights);
        }
    }
    return work * params.num_rows;
}

void check(const LayersParams& params) {
    if (params.embed != nullptr) check_embed(*params.embed);
    check_addresses(params.own);
    if (params.cross_pool.is_there) check_addresses(params.cross);
    if (!params.own_pool.is_there) return;
    for (int64_t row = 0; row < params.num_rows; ++row) {
        if (params.cell[row] >= -1 && params.cell[row] < params.own_pool.num_cells) continue;
        throw std::runtime_error("layers: `cell` must be from 0 to " +
                                 std::to_string(params.own_pool.num_cells - 1) +
                                 ", or -1 for none, but is " + std::to_string(params.cell[row]));
    }
}

}  // namespace

void launch_layers(const LayersParams& params) {
    if (params.num_rows == 0) return;
    check(params);
    const Memory memory(Buffers::bytes(params));
    const Buffers buffers(params, memory.data());
    // rows behind the last offset are padding, which attention leaves as it is
    const int64_t counted = params.own.offset[params.own.num_sources];
    std::memset(buffers.attended + counted * params.size, 0,
                (params.num_rows - counted) * params.size * sizeof(float));
    const int num_threads = work_of(params) < kWorthTeam ? 1 : params.num_threads;
    Team::run(num_threads, [&](const Team& team) { Member(params, buffers, team).run(); });
}

}  // namespace pybeam
