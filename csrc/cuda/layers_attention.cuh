// The attention of a layer: a block has up to eight rows of a source and one head. A copy engine
// brings the keys and values that lie in cells before the block waits for numbers of this step.
// Four warps weigh 16 nodes each, and four fetch the values of this step; then each warp adds eight
// columns of all nodes.
#pragma once

#include "layers_block.cuh"

namespace pybeam::cuda {

// Attention over hypotheses, and over sources.
enum AttentionKind { kOwn, kSource };

// The keys and values of one attention. In that over hypotheses those of rows stand behind queries.
struct AttentionCall {
    AttentionKind kind;
    uint16_t* pool;         // [cells, 2, width]
    const uint16_t* query;  // places [rows, width], or [rows, 3, width] of hypotheses
    uint16_t* y;            // places [rows, width]
};

template <class Number>
class Attention {
  public:
    __device__ Attention(const LayersParams& p, const Memory& memory)
        : p_(p),
          memory_(memory),
          nodes_(*memory.nodes),
          num_units_(*memory.num_tiles * p.num_heads),
          scale_(p.scale * kLog2E) {}

    // All threads meet here.
    __device__ void begin() {
        if (has_no_unit()) return;
        list_nodes(kOwn, blockIdx.x, 0);
        list_nodes(kSource, blockIdx.x, 0);
    }

    // Asks for the first keys and values of the next call.
    __device__ void ask(AttentionKind kind, const uint16_t* pool) {
        if (!has_no_unit()) ask(kind, pool, blockIdx.x, 0);
    }

    __device__ void operator()(const AttentionCall& call) {
        for (int unit = blockIdx.x; unit < num_units_; unit += p_.plan.num_blocks) {
            attend(call, unit);
        }
    }

  private:
    static constexpr int kNodes = 16;  // of a chunk
    static constexpr int kKeyPacks = kHeadSize / kPack;
    static constexpr int kHalves = 2;  // of a chunk, eight nodes each
    static constexpr int kColumns = kHeadSize / kWarps;
    static_assert(kColumns == 8 && kChunks == 4, "a warp adds 8 columns of 4 chunks");
    static constexpr float kLog2E = 1.44269504f;
    // below every score, and a score that is minus infinity stays below it
    static constexpr float kLeast = -3.40282347e38f;

    // A row in a lane: its highest score, the total of weights, and two weighted values.
    struct Sums {
        float peak = kLeast, total = 0;
        float sum[2] = {0, 0};
    };

    // The factors of a lane, eight numbers of each pack: its row's query, and the keys of a node
    // of each half of its warp's chunk. Those of this step come to places.
    struct Operands {
        bool awaits_query = false, awaits_key[kHalves] = {};
        const uint16_t *query_place, *key_place[kHalves];
        Vector query[kKeyPacks] = {}, key[kHalves][kKeyPacks];

        __device__ void load() {
            if (awaits_query) load(query, query_place);
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                if (awaits_key[half]) load(key[half], key_place[half]);
            }
        }
        __device__ bool is_short() const {
            bool any = is_any_absent(query);
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                any |= awaits_key[half] && is_any_absent(key[half]);
            }
            return any;
        }
        __device__ static void load(Vector (&packs)[kKeyPacks], const uint16_t* place) {
#pragma unroll
            for (int i = 0; i < kKeyPacks; ++i) packs[i] = load_place(place + i * kPack);
        }
    };

    __device__ static int lane() { return threadIdx.x % kWarpSize; }
    __device__ static int own_warp() { return threadIdx.x / kWarpSize; }

    __device__ bool has_no_unit() const { return static_cast<int>(blockIdx.x) >= num_units_; }
    __device__ const Tile& tile_of(int unit) const { return memory_.tiles[unit / p_.num_heads]; }
    __device__ int head_of(int unit) const { return unit % p_.num_heads * kHeadSize; }
    __device__ int64_t query_stride(AttentionKind kind) const {
        return kind == kOwn ? 3 * p_.width : p_.width;
    }

    __device__ int length_of(AttentionKind kind, const Tile& tile) const {
        const SeenCells& seen = p_.seen;
        return kind == kOwn ? min(seen.length[tile.slot], seen.max_cells)
                            : min(seen.source_length[tile.slot], seen.max_source_cells);
    }

    // The place in the list of the node of a row.
    __device__ static int node_of(const Tile& tile, int length, int row) {
        return row - tile.row_end + length;
    }

    // Lists the nodes of a unit from one on, unless they are listed. All layers have the same. If
    // others are listed, no thread attends over those any more when this ends.
    __device__ void list_nodes(AttentionKind kind, int unit, int first) {
        NodeList& list = nodes_.list[kind];
        const bool is_listed = list.unit == unit && list.first == first;
        if (is_listed) return;
        __syncthreads();
        const SeenCells& seen = p_.seen;
        const Tile& tile = tile_of(unit);
        const int length = length_of(kind, tile), i = threadIdx.x, node = first + i;
        bool is_old = false;
        if (i < kListed && node < length) {
            const int32_t* cells =
                kind == kOwn ? seen.cell + int64_t{tile.slot} * seen.max_cells
                             : seen.source_cell + int64_t{tile.slot} * seen.max_source_cells;
            const int cell = cells[node], row = tile.row_end - length + node;
            is_old = kind == kSource || row < tile.row_begin || seen.new_cell[row] != cell;
            list.cell[i] = is_old ? cell : kOfRow;
            uint32_t lines = (1u << (tile.end - tile.begin)) - 1;
            if (kind == kOwn) {
                const int64_t* mask =
                    seen.mask + (int64_t{tile.slot} * seen.max_cells + node) * seen.mask_words;
                for (int line = 0; line < tile.end - tile.begin; ++line) {
                    const int entry = seen.entry[tile.begin + line];
                    const uint32_t is_seen = mask[entry / 64] >> entry % 64 & 1;
                    lines &= ~((is_seen ^ 1) << line);
                }
            }
            list.lines[i] = static_cast<uint8_t>(lines);
        } else if (i < kListed) {
            list.cell[i] = kNoNode, list.lines[i] = 0;
        }
        const int num_old = __syncthreads_count(is_old);
        if (i == 0) list.unit = unit, list.first = first, list.num_old = num_old;
        __syncthreads();
    }

    // Asks for keys and values that lie in cells, where those before have been.
    __device__ void ask(AttentionKind kind, const uint16_t* pool, int unit, int first) {
        list_nodes(kind, unit, first);
        const NodeList& list = nodes_.list[kind];
        const int i = threadIdx.x;
        if (i == 0) expect_copies(memory_.node_word, list.num_old * 4 * kHeadSize);
        if (i >= kListed || list.cell[i] == kOfRow) return;
        if (list.cell[i] == kNoNode) {
            // its weight is 0, which makes a NaN of what may be here
            auto* value = reinterpret_cast<uint4*>(nodes_.value[i]);
#pragma unroll
            for (int j = 0; j < kHeadSize / 8; ++j) value[j] = uint4{0, 0, 0, 0};
            order_copies();
            return;
        }
        const uint16_t* key = pool + int64_t{list.cell[i]} * 2 * p_.width + head_of(unit);
        copy_ahead(nodes_.key[i], key, 2 * kHeadSize, memory_.node_word);
        copy_ahead(nodes_.value[i], key + p_.width, 2 * kHeadSize, memory_.node_word);
    }

    __device__ void attend(const AttentionCall& call, int unit) {
        const Tile tile = tile_of(unit);
        const int length = length_of(call.kind, tile), head = head_of(unit);
        // a lane has a row of the tile and two columns
        const int row = tile.begin + lane() / 4;
        const bool has_row = row < tile.end;
        uint16_t* y =
            call.y + int64_t{row} * p_.width + head + own_warp() * kColumns + lane() % 4 * 2;
        Sums sums;
        Operands x;
        x.awaits_query = has_row;
        x.query_place = call.query + row * query_stride(call.kind) + head + lane() % 4 * 8;
        int first = 0;
#pragma unroll 1
        do {
            // the first ones of all have been asked for
            if (first > 0 || unit != static_cast<int>(blockIdx.x)) {
                ask(call.kind, call.pool, unit, first);
            }
            await_copies(memory_.node_word, turn_);
            turn_ ^= 1;
            if (own_warp() < kChunks) {
                leave_weights(call, tile, length, head, first, x);
            } else if (call.kind == kOwn) {
                await_rows(call, tile, length, head, first);
            }
            __syncthreads();
            add_values(sums);
            first += kListed;
        } while (first < length);
        // a row that sees no node gets zeros; the weight of a highest score is 1
        const float factor = reciprocal_fast(fmaxf(sums.total, 1.0f));
        if (has_row) leave_pair(y, Number::pair(sums.sum[0] * factor, sums.sum[1] * factor));
        __syncthreads();
    }

    // Waits for values of this step, in the warps that have no chunk: a thread has eight numbers of
    // a row. Keys and values of the tile's rows go to their cells, where nobody reads them in this
    // launch.
    __device__ void await_rows(const AttentionCall& call, const Tile& tile, int length, int head,
                               int first) {
        const int part = threadIdx.x % 16, column = head + part % 8 * 8;
        const int offset = part / 8 * p_.width + column;
        constexpr int kBusy = kChunks * kWarpSize;
        const int own = (static_cast<int>(threadIdx.x) - kBusy) / 16;
        for (int row = tile.row_begin + own; row < tile.row_end; row += (kThreads - kBusy) / 16) {
            const int cell = p_.seen.new_cell[row], i = node_of(tile, length, row) - first;
            const bool is_here =
                part >= 8 && i >= 0 && i < kListed && nodes_.list[kOwn].cell[i] == kOfRow;
            const bool is_kept = first == 0 && row >= tile.begin && row < tile.end && cell >= 0 &&
                                 cell < p_.seen.num_pool_cells;
            if (!is_here && !is_kept) continue;
            const uint16_t* place = call.query + row * query_stride(kOwn) + p_.width + offset;
            Vector found[1] = {load_place(place)};
            await(found, [&](int) { return place; });
            const uint32_t (&word)[4] = found[0].word;
            const uint4 words{word[0], word[1], word[2], word[3]};
            if (is_here) *reinterpret_cast<uint4*>(nodes_.value[i] + part % 8 * 8) = words;
            if (is_kept) {
                uint16_t* kept = call.pool + int64_t{cell} * 2 * p_.width + offset;
                *reinterpret_cast<uint4*>(kept) = words;
            }
        }
        order_copies();
    }

    // The keys of a warp's chunk: those of cells have come.
    __device__ void find_keys(const AttentionCall& call, const Tile& tile, int length, int head,
                              int first, Operands& x) const {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            const int i = own_warp() * kNodes + half * 8 + lane() / 4, column = lane() % 4 * 8;
            const int row = first + i - length + tile.row_end;
            x.awaits_key[half] = nodes_.list[call.kind].cell[i] == kOfRow;
            x.key_place[half] = call.query + row * query_stride(kOwn) + p_.width + head + column;
#pragma unroll
            for (int j = 0; j < kKeyPacks; ++j) {
                x.key[half][j] = vector_at(nodes_.key[i] + column + j * kPack);
            }
        }
    }

    // The weights of a warp's chunk: a lane has a row and two nodes of each half.
    __device__ void leave_weights(const AttentionCall& call, const Tile& tile, int length, int head,
                                  int first, Operands& x) {
        const int chunk = own_warp(), line = lane() / 4;
        bool is_seen[kHalves][2];
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int i = chunk * kNodes + half * 8 + lane() % 4 * 2 + k;
                is_seen[half][k] = nodes_.list[call.kind].lines[i] >> line & 1;
            }
        }
        find_keys(call, tile, length, head, first, x);
        do x.load();
        while (x.is_short());
        x.awaits_query = false;
        __syncwarp();
        // The lines of rows have words 0 and 2 of a pack, and eight lines below them words 1 and 3,
        // which meet other words of keys: a half of each product counts, and no word is moved.
        float product[kHalves][2][4] = {};
#pragma unroll
        for (int i = 0; i < kKeyPacks; ++i) {
            const uint32_t (&query)[4] = x.query[i].word;
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const uint32_t (&key)[4] = x.key[half][i].word;
                Number::multiply(product[half][0], query, {key[0], key[2]});
                Number::multiply(product[half][1], query, {key[1], key[3]});
            }
        }
        float logit[kHalves][2], peak = kLeast;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const float score = (product[half][0][k] + product[half][1][2 + k]) * scale_;
                logit[half][k] = is_seen[half][k] ? score : kMinusInfinity;
                peak = fmaxf(peak, logit[half][k]);
            }
        }
        peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, 2));
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            nodes_.weight[chunk / 2][lane()][2 * half + chunk % 2] =
                Number::pair(exp2_fast(logit[half][0] - peak), exp2_fast(logit[half][1] - peak));
        }
        if (lane() % 4 == 0) nodes_.peak[line][chunk] = peak;
    }

    // Adds the values of all listed nodes: a warp has eight columns, and a lane a row and two of
    // them. Two chunks share the lines of a product as halves of a pack do.
    __device__ void add_values(Sums& sums) const {
        const float4 peaks = *reinterpret_cast<const float4*>(nodes_.peak[lane() / 4]);
        float total[kChunks / 2][4] = {}, sum[kChunks][4] = {};
#pragma unroll
        for (int i = 0; i < kChunks / 2; ++i) {
            const Vector weights = vector_at(nodes_.weight[i][lane()]);
            Number::multiply(total[i], weights.word, {Number::kOnes, Number::kOnes});
            uint32_t values[4];
            load_transposed(values, nodes_.value[i * 2 * kNodes + lane()] + own_warp() * kColumns);
            Number::multiply(sum[2 * i], weights.word, {values[0], values[1]});
            Number::multiply(sum[2 * i + 1], weights.word, {values[2], values[3]});
        }
        const float peak =
            fmaxf(fmaxf(sums.peak, fmaxf(peaks.x, peaks.y)), fmaxf(peaks.z, peaks.w));
        const float factor[kChunks] = {exp2_fast(peaks.x - peak), exp2_fast(peaks.y - peak),
                                       exp2_fast(peaks.z - peak), exp2_fast(peaks.w - peak)};
        const float change = exp2_fast(sums.peak - peak);
        sums.peak = peak;
        sums.total *= change, sums.sum[0] *= change, sums.sum[1] *= change;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int half = chunk % 2 * 2;
            sums.total += factor[chunk] * total[chunk / 2][half];
            sums.sum[0] += factor[chunk] * sum[chunk][half];
            sums.sum[1] += factor[chunk] * sum[chunk][half + 1];
        }
    }

    const LayersParams& p_;
    const Memory& memory_;
    NodeMemory& nodes_;
    int num_units_;
    float scale_;
    uint32_t turn_ = 0;
};

}  // namespace pybeam::cuda
