// The attention of a layer: a block has up to eight rows of a source and one head, and warps have
// 16 nodes each. A copy engine brings the keys and values that lie in cells before the block waits
// for its queries.
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
          sums_(*reinterpret_cast<AttentionSums*>(memory.partial)),
          num_units_(*memory.num_tiles * p.num_heads) {}

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
    static constexpr int kNodes = 16;  // of a warp
    static constexpr int kKeyPacks = kHeadSize / kPack;
    static constexpr float kLog2E = 1.44269504f;

    // The state of the rows in a warp: peaks and totals of the two that its lanes have, and sums of
    // all values, two numbers of each.
    struct Sums {
        float peak[2] = {kMinusInfinity, kMinusInfinity};
        float total[2] = {0, 0};
        float sum[kLines][2] = {};
    };

    struct Queries {
        Vector pack[kKeyPacks];
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

    // Lists the nodes of a unit from one on, unless they are listed. All layers have the same.
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
            list.cell[i] = is_old ? cell : -1;
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
            list.cell[i] = -1, list.lines[i] = 0;
        }
        const int num_old = __syncthreads_count(is_old);
        if (i == 0) list.unit = unit, list.first = first, list.num_old = num_old;
        __syncthreads();
    }

    // Asks for keys and values that lie in cells. No thread reads those before any more.
    __device__ void ask(AttentionKind kind, const uint16_t* pool, int unit, int first) {
        list_nodes(kind, unit, first);
        const NodeList& list = nodes_.list[kind];
        const int i = threadIdx.x;
        if (i == 0) expect_copies(memory_.node_word, list.num_old * 4 * kHeadSize);
        if (i >= kListed || list.cell[i] < 0) return;
        const uint16_t* key = pool + int64_t{list.cell[i]} * 2 * p_.width + head_of(unit);
        copy_ahead(nodes_.key[i], key, 2 * kHeadSize, memory_.node_word);
        copy_ahead(nodes_.value[i], key + p_.width, 2 * kHeadSize, memory_.node_word);
    }

    __device__ void attend(const AttentionCall& call, int unit) {
        const Tile& tile = tile_of(unit);
        const int length = length_of(call.kind, tile), head = head_of(unit);
        const int num_warps = min(kListed, length + kNodes - 1) / kNodes;
        Sums sums;
        Queries query{};
#pragma unroll 1
        for (int first = 0; first == 0 || first < length; first += kListed) {
            // the first ones of all have been asked for
            if (first > 0 || unit != static_cast<int>(blockIdx.x)) {
                ask(call.kind, call.pool, unit, first);
            }
            const bool has_query = first == 0 && own_warp() < num_warps;
            if (has_query) query = load_queries(call, tile, head);
            if (call.kind == kOwn) await_rows(call, tile, length, head, first);
            if (has_query) await_queries(query, call, tile, head);
            await_copies(memory_.node_word, turn_);
            turn_ ^= 1;
            __syncthreads();
            if (first + own_warp() * kNodes < length && own_warp() < num_warps) {
                add_nodes(nodes_.list[call.kind], query, first == 0, sums);
            }
            // before other nodes come where these are
            if (first + kListed < length) leave_nodes();
        }
        if (own_warp() < num_warps) leave_sums(sums);
        __syncthreads();
        finish(call, tile, head, num_warps);
        leave_nodes();
    }

    // The copy engine may write where threads have written before.
    __device__ static void leave_nodes() {
        order_copies();
        __syncthreads();
    }

    // Waits for keys and values of this step: a thread has eight numbers of a row. Those of the
    // tile's rows go to their cells too, where nobody reads them in this launch.
    __device__ void await_rows(const AttentionCall& call, const Tile& tile, int length, int head,
                               int first) {
        const int part = threadIdx.x % 16, column = head + part % 8 * 8;
        const int offset = part / 8 * p_.width + column;
        for (int row = tile.row_begin + static_cast<int>(threadIdx.x) / 16; row < tile.row_end;
             row += kThreads / 16) {
            const int cell = p_.seen.new_cell[row], i = node_of(tile, length, row) - first;
            const bool is_here = i >= 0 && i < kListed && nodes_.list[kOwn].cell[i] < 0;
            const bool is_kept = first == 0 && row >= tile.begin && row < tile.end && cell >= 0 &&
                                 cell < p_.seen.num_pool_cells;
            if (!is_here && !is_kept) continue;
            const uint16_t* place = call.query + row * query_stride(kOwn) + p_.width + offset;
            Vector found[1] = {load_place(place)};
            await(found, [&](int) { return place; });
            const uint32_t (&word)[4] = found[0].word;
            const uint4 words{word[0], word[1], word[2], word[3]};
            if (is_here) {
                uint16_t* line = part < 8 ? nodes_.key[i] : nodes_.value[i];
                *reinterpret_cast<uint4*>(line + part % 8 * 8) = words;
            }
            if (is_kept) {
                uint16_t* kept = call.pool + int64_t{cell} * 2 * p_.width + offset;
                *reinterpret_cast<uint4*>(kept) = words;
            }
        }
    }

    __device__ const uint16_t* query_of(const AttentionCall& call, const Tile& tile,
                                        int head) const {
        const int row = tile.begin + lane() / 4;
        return call.query + row * query_stride(call.kind) + head + lane() % 4 * 8;
    }

    __device__ Queries load_queries(const AttentionCall& call, const Tile& tile, int head) const {
        Queries query{};
        const uint16_t* place = query_of(call, tile, head);
#pragma unroll
        for (int i = 0; i < kKeyPacks; ++i) {
            if (tile.begin + lane() / 4 < tile.end) query.pack[i] = load_place(place + i * kPack);
        }
        return query;
    }

    __device__ void await_queries(Queries& query, const AttentionCall& call, const Tile& tile,
                                  int head) const {
        const uint16_t* place = query_of(call, tile, head);
        await(query.pack, [&](int i) { return place + i * kPack; });
        __syncwarp();
    }

    __device__ static float peak_of_nodes(float x) {
#pragma unroll
        for (int step = 4; step < kWarpSize; step *= 2)
            x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
        return x;
    }

    __device__ static float sum_of_nodes(float x) {
#pragma unroll
        for (int step = 4; step < kWarpSize; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
        return x;
    }

    // The scores of a warp's nodes: a lane has two nodes and two rows.
    __device__ void add_nodes(const NodeList& list, const Queries& query, bool is_first,
                              Sums& sums) {
        const int first = own_warp() * kNodes, node = first + lane() / 4;
        float product[2][4] = {};
#pragma unroll
        for (int i = 0; i < kKeyPacks; ++i) {
            const int place = i * kPack + lane() % 4 * 8;
            const Vector a = vector_at(nodes_.key[node] + place);
            const Vector b = vector_at(nodes_.key[node + 8] + place);
            const Vector& x = query.pack[i];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int j = 2 * half;
                Number::multiply(product[half],
                                 {a.word[j], b.word[j], a.word[j + 1], b.word[j + 1]},
                                 {x.word[j], x.word[j + 1]});
            }
        }
        float (&weights)[kNodes][kLines] = nodes_.weight[own_warp()];
        float change[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int line = lane() % 4 * 2 + k;
            float logit[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float x = product[0][2 * half + k] + product[1][2 * half + k];
                const bool is_seen = list.lines[node + 8 * half] >> line & 1;
                logit[half] = is_seen ? x * p_.scale * kLog2E : kMinusInfinity;
            }
            const float peak = fmaxf(sums.peak[k], peak_of_nodes(fmaxf(logit[0], logit[1])));
            const float shift = peak == kMinusInfinity ? 0.0f : peak;
            change[k] = exp2_fast(sums.peak[k] - shift);
            sums.peak[k] = peak;
            sums.total[k] *= change[k];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float weight = exp2_fast(logit[half] - shift);
                weights[lane() / 4 + 8 * half][line] = weight;
                sums.total[k] += weight;
            }
        }
        if (!is_first) {
#pragma unroll
            for (int line = 0; line < kLines; ++line) {
                const float factor = __shfl_sync(kAllLanes, change[line % 2], line / 2);
                sums.sum[line][0] *= factor, sums.sum[line][1] *= factor;
            }
        }
        __syncwarp();
        add_values(weights, first, sums);
        // the next nodes' weights go to the same place
        __syncwarp();
    }

    __device__ void add_values(const float (&weights)[kNodes][kLines], int first,
                               Sums& sums) const {
#pragma unroll 4
        for (int i = 0; i < kNodes; ++i) {
            const auto* pair = reinterpret_cast<const uint32_t*>(nodes_.value[first + i]);
            const float2 value = floats_of<Number>(pair[lane()]);
            const auto* weight = reinterpret_cast<const float4*>(weights[i]);
            const float4 low = weight[0], high = weight[1];
            const float each[kLines] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int line = 0; line < kLines; ++line) {
                // numbers that are not there may be anything
                if (!(each[line] > 0)) continue;
                sums.sum[line][0] += each[line] * value.x;
                sums.sum[line][1] += each[line] * value.y;
            }
        }
    }

    __device__ void leave_sums(const Sums& sums) {
        const int warp = own_warp();
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float all = sum_of_nodes(sums.total[k]);
            if (lane() >= 4) continue;
            sums_.peak[warp][lane() * 2 + k] = sums.peak[k];
            sums_.total[warp][lane() * 2 + k] = all;
        }
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
            float* place = sums_.sum[warp][line] + 2 * lane();
            place[0] = sums.sum[line][0], place[1] = sums.sum[line][1];
        }
    }

    // A warp adds what the warps have of a row; a row that sees no node gets zeros.
    __device__ void finish(const AttentionCall& call, const Tile& tile, int head,
                           int num_warps) const {
        const int line = own_warp(), row = tile.begin + line;
        if (row >= tile.end) return;
        constexpr int kMost = kListed / kNodes;
        float peaks[kMost], peak = kMinusInfinity;
#pragma unroll
        for (int warp = 0; warp < kMost; ++warp) {
            peaks[warp] = warp < num_warps ? sums_.peak[warp][line] : kMinusInfinity;
            peak = fmaxf(peak, peaks[warp]);
        }
        const float shift = peak == kMinusInfinity ? 0.0f : peak;
        float2 sum{0, 0};
        float total = 0;
#pragma unroll
        for (int warp = 0; warp < kMost; ++warp) {
            if (warp >= num_warps) continue;
            const float factor = exp2_fast(peaks[warp] - shift);
            const float* part = sums_.sum[warp][line] + 2 * lane();
            sum.x += factor * part[0], sum.y += factor * part[1];
            total += factor * sums_.total[warp][line];
        }
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        leave_pair(call.y + int64_t{row} * p_.width + head + 2 * lane(),
                   Number::pair(sum.x * factor, sum.y * factor));
    }

    const LayersParams& p_;
    const Memory& memory_;
    NodeMemory& nodes_;
    AttentionSums& sums_;
    int num_units_;
    uint32_t turn_ = 0;
};

}  // namespace pybeam::cuda
