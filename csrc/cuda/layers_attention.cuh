// The attention of a layer: a block has up to eight rows of a source and one head. Keys and values
// that lie in cells are on their way before the block waits for numbers of this step.
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
        const int i = threadIdx.x;
        if (i < 2 * kListed) list_node(i < kListed ? kOwn : kSource, blockIdx.x, 0, i % kListed);
        __syncthreads();
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
            for (int i = 0; i < kKeyPacks; ++i) packs[i] = load_place(place + i * kSpread * kPack);
        }
    };

    __device__ static int lane() { return threadIdx.x % kWarpSize; }
    __device__ static int own_warp() { return threadIdx.x / kWarpSize; }

    __device__ bool has_no_unit() const { return static_cast<int>(blockIdx.x) >= num_units_; }
    __device__ int query_stride(AttentionKind kind) const {
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
        const NodeList& list = nodes_.list[kind];
        const bool is_listed = list.unit == unit && list.first == first;
        if (is_listed) return;
        __syncthreads();
        if (threadIdx.x < kListed) list_node(kind, unit, first, threadIdx.x);
        __syncthreads();
    }

    // Lists the i-th of these nodes; the first ones list what is known of the unit, too.
    __device__ void list_node(AttentionKind kind, int unit, int first, int i) {
        static_assert(kMaxRows <= kListed);
        NodeList& list = nodes_.list[kind];
        const SeenCells& seen = p_.seen;
        const int tile_number = unit / p_.num_heads;
        const Tile& tile = memory_.tiles[tile_number];
        const int length = length_of(kind, tile), node = first + i;
        const int num_lines = tile.end - tile.begin;
        if (i < tile.row_end - tile.row_begin) {
            list.new_cell[i] = seen.new_cell[tile.row_begin + i];
        }
        list.cell[i] = kNoNode, list.lines[i] = 0;
        if (i == 0) {
            list.unit = unit, list.first = first, list.length = length, list.tile = tile;
            list.head = (unit - tile_number * p_.num_heads) * kHeadSize;
        }
        if (node >= length) return;
        const int64_t place = int64_t{tile.slot} * seen.max_cells + node;
        if (kind == kSource) {
            list.cell[i] = seen.source_cell[int64_t{tile.slot} * seen.max_source_cells + node];
            list.lines[i] = static_cast<uint8_t>((1u << num_lines) - 1);
            return;
        }
        const int cell = seen.cell[place], row = tile.row_end - length + node;
        const bool is_old = row < tile.row_begin || seen.new_cell[row] != cell;
        list.cell[i] = is_old ? cell : kOfRow;
        const int64_t* mask = seen.mask + place * seen.mask_words;
        uint32_t lines = 0;
        // so that their loads are on their way at once
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
            const int entry = line < num_lines ? seen.entry[tile.begin + line] : 0;
            const int64_t is_seen = mask[entry / 64] >> entry % 64 & 1;
            if (line < num_lines) lines |= static_cast<uint32_t>(is_seen) << line;
        }
        list.lines[i] = static_cast<uint8_t>(lines);
    }

    // Asks for keys and values that lie in cells, where those before have been.
    __device__ void ask(AttentionKind kind, const uint16_t* pool, int unit, int first) {
        list_nodes(kind, unit, first);
        const NodeList& list = nodes_.list[kind];
        // a thread has eight numbers of some nodes' keys, or of their values
        constexpr int kParts = 2 * kHeadSize / 8;
        const int part = threadIdx.x % kParts, column = part % (kParts / 2) * 8;
        const bool is_value = part >= kParts / 2;
        const uint16_t* from = pool + list.head + (is_value ? p_.width : 0) + column;
#pragma unroll
        for (int j = 0; j < kListed * kParts / kThreads; ++j) {
            const int i = j * (kThreads / kParts) + static_cast<int>(threadIdx.x) / kParts;
            const int cell = list.cell[i];
            if (cell == kOfRow) continue;
            uint16_t* to = (is_value ? nodes_.value[i] : nodes_.key[i]) + column;
            // the weight of a node that there is not is 0, which makes a NaN of what may be here
            const bool is_there = cell != kNoNode;
            const int64_t begin = is_there ? int64_t{cell} * 2 * p_.width : 0;
            copy_or_clear(to, from + begin, is_there, memory_.node_word);
        }
        count_copies(memory_.node_word);
    }

    __device__ void attend(const AttentionCall& call, int unit) {
        // the first ones of all have been asked for
        if (unit != static_cast<int>(blockIdx.x)) ask(call.kind, call.pool, unit, 0);
        const NodeList& list = nodes_.list[call.kind];
        const Tile tile = list.tile;
        const int length = list.length, head = list.head;
        // a lane has a row of the tile and two columns
        const int row = tile.begin + lane() / 4;
        const bool has_row = row < tile.end;
        uint16_t* y =
            call.y + spread(row * p_.width + head + own_warp() * kColumns + lane() % 4 * 2);
        Sums sums;
        Operands x;
        x.awaits_query = has_row;
        x.query_place = call.query + spread(row * query_stride(call.kind) + head + lane() % 4 * 8);
        int first = 0;
#pragma unroll 1
        do {
            if (first > 0) ask(call.kind, call.pool, unit, first);
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
        const NodeList& list = nodes_.list[kOwn];
        constexpr int kBusy = kChunks * kWarpSize;
        const int own = (static_cast<int>(threadIdx.x) - kBusy) / 16;
        for (int row = tile.row_begin + own; row < tile.row_end; row += (kThreads - kBusy) / 16) {
            const int cell = list.new_cell[row - tile.row_begin];
            const int i = node_of(tile, length, row) - first;
            const bool is_here = part >= 8 && i >= 0 && i < kListed && list.cell[i] == kOfRow;
            const bool is_kept = first == 0 && row >= tile.begin && row < tile.end && cell >= 0 &&
                                 cell < p_.seen.num_pool_cells;
            if (!is_here && !is_kept) continue;
            const uint16_t* place =
                call.query + spread(row * query_stride(kOwn) + p_.width + offset);
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
    }

    // The keys of a warp's chunk: those of cells have come.
    __device__ void find_keys(const AttentionCall& call, const Tile& tile, int length, int head,
                              int first, Operands& x) const {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            const int i = own_warp() * kNodes + half * 8 + lane() / 4, column = lane() % 4 * 8;
            const int row = first + i - length + tile.row_end;
            x.awaits_key[half] = nodes_.list[call.kind].cell[i] == kOfRow;
            x.key_place[half] =
                call.query + spread(row * query_stride(kOwn) + p_.width + head + column);
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
