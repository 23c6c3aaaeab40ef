#include "../params/layers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "../dispatch.h"
#include "../params/layer_norm.h"
#include "automata.h"
#include "numbers.h"
#include "selection.h"
#include "sublayers.h"

namespace pybeam {
namespace {

// Memory between the sublayers.
struct Buffers {
    Buffers(const LayersParams& params, Arrays& arrays)
        : x(arrays.floats(params.size)),
          normal(arrays.floats(params.size)),
          qkv(arrays.floats(params.qkv_size())),
          attended(arrays.floats(params.attended_size())),
          inner(arrays.floats((params.is_gated ? 2 : 1) * params.inner_size)),
          states(arrays.floats(params.state_pool.is_there ? params.output.num_columns : 0)),
          prepared(arrays, std::max({params.size, params.inner_size, params.attended_size()})) {}

    float* x;
    float* normal;  // norms of x, or what a norm makes of before it is added to x
    float *qkv, *attended, *inner;
    float* states;  // keys and values of a decoder
    PreparedRows prepared;
};

// Members of a team take tiles each of their own where there are this many for each of them.
constexpr int64_t kTilesPerMember = 2;

// Whether each row is multiplied by the columns alone that its beam chooses among.
bool has_own_columns(const LayersParams& params) {
    return params.columns != nullptr && params.columns->has_layers();
}

// Most rows of a tile. Logits of so few stay in a core's own cache until they are read, and their
// memory is written again by the next tile. But each tile reads all weights, so there is one tile
// where a cache has no room for them.
int64_t tile_rows(const LayersParams& params) {
    constexpr int64_t kRows = 15;  // whole beams of 5, and whole blocks of rows
    constexpr int64_t kMostBytes = 1 << 24;
    if (has_own_columns(params)) return kRows;
    const LinearWeights& output = params.output;
    const int64_t item = output.type == WeightType::kInt8      ? 1
                         : output.type == WeightType::kFloat32 ? 4
                                                               : 2;
    return output.num_columns * output.depth * item <= kMostBytes ? kRows : INT64_MAX;
}

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
        if (p_.is_read()) finish();
    }

  private:
    void embed() {
        EmbedParams params = *p_.embed;
        params.y = x_;
        for_rows([&](int64_t row) { embed_row(params, row); });
        laps_.end(Kernel::kEmbed, [&] { return rows_work(3 * p_.size); });
        behind_ = p_.embedding_norm;
    }

    void run_layer(size_t i) {
        const LayerWeights& layer = p_.layers[i];
        read(Kernel::kQkv, layer.self_norms, layer.qkv, b_.qkv);
        place_keys(layer, i);
        // nobody reads what follows the last keys and values
        if (!p_.is_read() && i + 1 == p_.layers.size()) return;
        attend_own(layer, i);
        if (p_.is_parallel) read_inner(layer);
        add(Kernel::kSelfOut, layer.self_out, b_.attended, layer.self_norms);
        if (p_.cross_pool.is_there) {
            read(Kernel::kCrossQuery, layer.cross_norms, layer.cross_query, b_.qkv);
            attend(Kernel::kCrossAttention, p_.cross, i, p_.cross_pool, b_.qkv, p_.attended_size(),
                   b_.attended);
            add(Kernel::kCrossOut, layer.cross_out, b_.attended, layer.cross_norms);
        }
        if (!p_.is_parallel) read_inner(layer);
        add(Kernel::kInnerOut, layer.inner_out, b_.inner, layer.inner_norms,
            (p_.is_gated ? 2 : 1) * p_.inner_size);
    }

    void read_inner(const LayerWeights& layer) {
        const Activation activation = p_.is_gated ? Activation::kNone : p_.activation;
        read(Kernel::kInner, layer.inner_norms, layer.inner, b_.inner, activation);
        if (p_.is_gated) gate(p_.activation, b_.inner, p_.inner_size);
    }

    // Makes a row of what a product reads.
    void make_input(const NormWeights& norm, int64_t row) const {
        settle(row);
        if (norm.weight == nullptr) return;
        normalise(norm, x_of(row), p_.size, b_.normal + row * p_.size);
    }

    // y = f(W x + b), x normalised first where there is a norm.
    void read(Kernel kernel, const SublayerNorms& norms, const LinearWeights& weights, float* y,
              Activation activation = Activation::kNone) {
        run_product(kernel, reading(norms.before, weights, y, activation),
                    [&](int64_t row) { make_input(norms.before, row); });
        added_ = behind_ = {};
    }

    LinearParams reading(const NormWeights& norm, const LinearWeights& weights, float* y,
                         Activation activation) const {
        return product(weights, norm.weight == nullptr ? x_ : b_.normal, y, activation, false);
    }

    // x += W y + b, or what a norm makes of it. Rows of y are `stride` apart; 0: they stand side by
    // side.
    void add(Kernel kernel, const LinearWeights& weights, const float* y,
             const SublayerNorms& norms, int64_t stride = 0) {
        const bool adds = norms.added.weight == nullptr;
        float* to = adds ? x_ : b_.normal;
        run_product(kernel, product(weights, y, to, Activation::kNone, adds, stride), NoNorm());
        added_ = norms.added;
        behind_ = norms.behind;
    }

    // Norms behind a sublayer wait for the rows to be read.
    void settle(int64_t row) const {
        float* const x = x_of(row);
        if (added_.weight != nullptr) {
            float* const added = b_.normal + row * p_.size;
            normalise(added_, added, p_.size, added);
            for (int64_t d = 0; d < p_.size; ++d) x[d] += added[d];
        }
        if (behind_.weight != nullptr) normalise(behind_, x, p_.size, x);
    }

    // Norms and rotary embeddings of queries and keys, while they are in the cache. Keys and values
    // go to their cells.
    void place_keys(const LayerWeights& layer, size_t i) const {
        const bool turns = layer.rotary >= 0 || layer.query_norm.weight != nullptr;
        if (!turns && !p_.own_pool.is_there) return;
        const auto place_row = [&](int64_t row) {
            float* const query = b_.qkv + row * p_.qkv_size();
            float* const key = query + p_.attended_size();
            if (turns) {
                turn(layer, layer.query_norm, row, query, p_.num_heads);
                turn(layer, layer.key_norm, row, key, p_.num_key_heads);
            }
            if (p_.own_pool.is_there) fill_cell(p_.own_pool, i, p_.cell[row], key);
        };
        for_rows(place_row, turns ? 1 : 8);
        laps_.end(Kernel::kKeys, [&] { return rows_work(2 * p_.qkv_size()); });
    }

    // Writes a key of layer i and the value that follows it.
    static void fill_cell(const LayerPool& pool, int64_t i, int64_t cell, const float* key) {
        if (cell < 0) return;
        const int64_t size = 2 * pool.key_size, place = i * pool.layer_stride + cell * size;
        if (pool.dtype == DType::kFloat32) {
            std::memcpy(static_cast<float*>(pool.data) + place, key, size * sizeof(float));
        } else {
            kernels().round_cell(key, size, static_cast<BFloat16*>(pool.data) + place);
        }
    }

    void turn(const LayerWeights& layer, const NormWeights& norm, int64_t row, float* x,
              int64_t num_heads) const {
        for (float* head = x; head < x + num_heads * p_.head_size; head += p_.head_size) {
            if (norm.weight != nullptr) normalise(norm, head, p_.head_size, head);
            if (layer.rotary < 0) continue;
            const RotaryTable& table = p_.rotary[layer.rotary];
            const int64_t angles = p_.place[row] * table.half;
            kernels().rotate_head(head, table.cos + angles, table.sin + angles, table.half, head);
        }
    }

    void attend_own(const LayerWeights& layer, size_t i) const {
        TreeAttentionParams params = p_.own;
        params.window = layer.window;
        if (p_.own_pool.is_there) {
            return attend(Kernel::kSelfAttention, params, i, p_.own_pool, b_.qkv, p_.qkv_size(),
                          b_.attended);
        }
        // an encoder's cells are rows
        params.key = b_.qkv + p_.attended_size();
        params.value = b_.qkv + p_.attended_size() + p_.num_key_heads * p_.head_size;
        params.key_cell_stride = params.value_cell_stride = p_.qkv_size();
        const WeightType type = layer.qkv.type;
        const bool sees_all = params.mask == nullptr && params.path == nullptr && !params.in_order;
        params.has_pairs = sees_all && (is_integer(type) || type == WeightType::kBFloat16);
        run_attention(Kernel::kSelfAttention, params, b_.qkv, p_.qkv_size(), b_.attended);
    }

    // Logits, or the last states where there is no output layer.
    void finish() const {
        if (p_.state_pool.is_there) return keep_states();
        if (p_.output.weight != nullptr) return compute_logits(p_.out);
        for_rows([&](int64_t row) {
            settle(row);
            float* const out = p_.out + row * p_.size;
            if (p_.final_norm.weight != nullptr) {
                return normalise(p_.final_norm, x_of(row), p_.size, out);
            }
            std::memcpy(out, x_of(row), p_.size * sizeof(float));
        });
    }

    // Keys and values of all layers of a decoder.
    void keep_states() const {
        compute_logits(b_.states);
        const int64_t columns = p_.output.num_columns, size = 2 * p_.state_pool.key_size;
        for_rows([&](int64_t row) {
            const float* const states = b_.states + row * columns;
            for (int64_t i = 0; i < columns / size; ++i) {
                fill_cell(p_.state_pool, i, p_.cell[row], states + i * size);
            }
        });
    }

    void compute_logits(float* y) const {
        const LinearParams output = reading(p_.final_norm, p_.output, y, Activation::kNone);
        prepare(LinearTasks(output, team_.size()), output.depth,
                [&](int64_t row) { make_input(p_.final_norm, row); });
        const auto whole = [&] { return kernel_work(output); };
        if (!has_own_columns(p_)) laps_.add(Kernel::kLogits, whole);
        if (p_.selection == nullptr) return compute_logits(team_, output);
        laps_.add(Kernel::kSelect, [&] { return rows_work(output.num_columns); });
        const std::vector<BeamTile> tiles = p_.selection->tiles(tile_rows(p_));
        const auto num_tiles = static_cast<int64_t>(tiles.size());
        if (team_.size() == 1 || num_tiles < kTilesPerMember * team_.size()) {
            for (const BeamTile& tile : tiles) choose(team_, tile, output, p_.out);
            return;
        }
        team_.for_each(num_tiles, [&](int64_t i) {
            static thread_local Scratch<float> logits;
            float* const own = logits.room(tiles[i].num_rows() * output.num_columns);
            choose(Team::alone(), tiles[i], output, own);
        });
        // the others may still be choosing
        laps_.end(Kernel::kSelect);
    }

    void compute_logits(const Team& team, const LinearParams& output) const {
        const LinearTasks tasks(output, team.size());
        team.for_each(tasks.size(), [&](int64_t task) { tasks.run(task); });
        if (p_.output_soft_cap != 0.0f) {
            team.for_each(output.num_rows, [&](int64_t row) {
                const int64_t columns = output.num_columns;
                kernels().soft_cap(p_.output_soft_cap, columns, output.y + row * columns);
            });
        }
        laps_.end(Kernel::kLogits);
    }

    // Chooses among the logits of a tile, for which there is room. Rows with columns of their own
    // come as many at a time as share them.
    void choose(const Team& team, const BeamTile& tile, const LinearParams& output,
                float* logits) const {
        for (int64_t first = tile.first_row, last; first < tile.last_row; first = last) {
            last = tile.last_row;
            LinearParams product = output;
            if (has_own_columns(p_)) {
                last = p_.columns->end_of_layer(first, last);
                product = with_weights(output, *p_.columns->layer_of(first));
            }
            product = rows_of(product, first, last, logits);
            if (has_own_columns(p_)) {
                laps_.add_own(Kernel::kLogits, [&] { return kernel_work(product); });
            }
            compute_logits(team, product);
            team.for_each(last - first, [&](int64_t i) {
                const int64_t row = first + i, num = product.num_columns;
                if (p_.edits != nullptr) edit_row(*p_.edits, row, logits + i * num, num);
                const float* seen = logits + i * num;
                if (p_.columns != nullptr) seen = p_.columns->write_row(row, seen);
                p_.selection->read_row(row, seen);
            });
        }
        team.for_each(tile.last_beam - tile.first_beam,
                      [&](int64_t i) { p_.selection->finish_beam(tile.first_beam + i); });
        laps_.end(Kernel::kSelect);
    }

    float* x_of(int64_t row) const { return x_ + row * p_.size; }

    // y [size] = the norm of x [size].
    void normalise(const NormWeights& norm, const float* x, int64_t size, float* y) const {
        if (norm.bias == nullptr) {
            return kernels().rms_norm_row(x, norm.weight, p_.epsilon, size, y);
        }
        LayerNormParams params{};
        params.x = x;
        params.size = size;
        params.weight = norm.weight;
        params.bias = norm.bias;
        params.epsilon = p_.epsilon;
        params.y = y;
        kernels().normalise_row(params, 0);
    }

    const LayersParams& p_;
    const Buffers& b_;
    float* const x_;
    NormWeights added_{}, behind_{};  // norms that x has not been given yet
};

int64_t work_of(const LayersParams& params) {
    // few columns are little work
    const bool has_output = params.is_read() && !has_own_columns(params);
    int64_t work = has_output ? work_of(params.output) : 0;
    for (const LayerWeights& layer : params.layers) {
        for (const LinearWeights* weights : {&layer.qkv, &layer.self_out, &layer.cross_query,
                                             &layer.cross_out, &layer.inner, &layer.inner_out}) {
            work += pybeam::work_of(*weights);
        }
    }
    return work * params.num_rows;
}

// Raises std::runtime_error if a cell that a row is written to is not in the pool.
void check_cells(const LayerPool& pool, const int32_t* cell, int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
        if (cell[row] >= -1 && cell[row] < pool.num_cells) continue;
        throw std::runtime_error("layers: `cell` must be from 0 to " +
                                 std::to_string(pool.num_cells - 1) + ", or -1 for none, but is " +
                                 std::to_string(cell[row]));
    }
}

void check(const LayersParams& params) {
    if (params.embed != nullptr) check_embed(*params.embed);
    check_addresses(params.own);
    if (params.cross_pool.is_there) check_addresses(params.cross);
    for (const LayerPool& pool : {params.own_pool, params.state_pool}) {
        if (pool.is_there) check_cells(pool, params.cell, params.num_rows);
    }
    for (const RotaryTable& table : params.rotary) {
        check_positions(params.place, params.num_rows, table);
    }
}

}  // namespace

void launch_layers(LayersParams params, const SelectParams& select) {
    if (params.num_rows == 0) return launch_select(select);
    Selection selection(select);
    params.selection = &selection;
    params.edits = select.edits;
    std::optional<Columns> columns;
    if (select.columns != nullptr) params.columns = &columns.emplace(*select.columns);
    launch_layers(params);
    if (columns) columns->check();
    selection.check_counts();
}

void launch_layers(const LayersParams& params) {
    if (params.num_rows == 0) return;
    check(params);
    run_members<Member, Buffers>(params, params.own, work_of(params));
}

}  // namespace pybeam
