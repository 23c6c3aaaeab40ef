// The shared memory of a block of `decoder_layers`, and the numbers that it computes with.
#pragma once

#include "block.cuh"
#include "decoder_layers.cuh"
#include "exchange.cuh"
#include "weight_ring.cuh"

namespace pybeam::cuda {

struct BFloat16Numbers : BFloat16 {
    static constexpr uint32_t kOnes = 0x3f803f80;

    __device__ static uint32_t pair(float first, float second) {
        return bfloat16_pair(first, second);
    }
    __device__ static void multiply(float (&sum)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
        multiply_bfloat16(sum, a, b);
    }
};

struct Float16Numbers : Float16 {
    static constexpr uint32_t kOnes = 0x3c003c00;

    __device__ static uint32_t pair(float first, float second) {
        return float16_pair(first, second);
    }
    __device__ static void multiply(float (&sum)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
        multiply_float16(sum, a, b);
    }
};

// The numbers of a word.
template <class Number>
__device__ float2 floats_of(uint32_t pair) {
    const Vector v{{pair, 0, 0, 0}};
    return {Number::at(v, 0), Number::at(v, 1)};
}

// Eight numbers of shared memory.
__device__ inline Vector vector_at(const void* place) {
    const uint4 x = *static_cast<const uint4*>(place);
    return {{x.x, x.y, x.z, x.w}};
}

// Up to eight rows of a source.
struct Tile {
    int begin, end;          // of its rows
    int row_begin, row_end;  // of those of its source
    int slot;
};

// Sums of a row's numbers and of their squares.
struct Moments {
    float sum, square;
};

// The nodes that a block attends over at once, and the warps that have some of them each.
constexpr int kListed = 64;
constexpr int kChunks = kListed / 16;

// In place of a cell: the node is of a row of this step, or there is none.
constexpr int kOfRow = -1, kNoNode = -2;

// Some nodes of a source, from the first one on, and what else a unit of attention needs to know.
struct NodeList {
    int unit, first;
    int length, head;  // of all nodes, and the first column
    Tile tile;
    int new_cell[kMaxRows];  // of the rows of the source
    int cell[kListed];
    uint8_t lines[kListed];  // a bit for each line of the tile that sees the node
};

struct NodeMemory {
    // half a line of banks apart, as columns of weights are
    uint16_t key[kListed][kHeadSize + 32];
    // an eighth of a line of banks apart, so that eight lanes read the same columns of eight nodes
    uint16_t value[kListed][kHeadSize + 8];
    // of two chunks' nodes, as tensor cores want them: two nodes a word
    uint32_t weight[kChunks / 2][kWarpSize][4];
    alignas(16) float peak[kLines][kChunks];  // of scores of each line
    NodeList list[2];
};

// The choice knows this of all rows: totals of this block's logits, entries, and whether they may
// not end.
struct ChoiceRows {
    Total total[kMaxRows];
    int entry[kMaxRows];
    bool bans[kMaxRows];
};

// The choice keeps this for a while, where attention has had its nodes.
struct ChoiceParts {
    // of the columns of a warp in a row: the largest logit that may be chosen, and all of them
    struct alignas(16) Part {
        float peak;
        Total total;
    };
    Part part[kWarps][kLines];
    // of the beam whose survivors are found: the first entry, and the row of each
    int begin, row[kMaxBlockWidth];
};

static_assert(sizeof(ChoiceParts) <= sizeof(NodeMemory));

struct Memory {
    RingMemory ring;
    uint64_t* node_word;  // of keys and values
    LayerAt* layers;      // and the logits
    ProductAt* products;
    Tile* tiles;  // [rows]
    int* num_tiles;
    Moments* moments;  // [2, warps, lines]
    NodeMemory* nodes;
    ChoiceRows* choice;
    ChoiceParts* parts;  // in place of nodes
    float* states;       // [groups, rows, lines], this block's columns of what sums are added to
    float* partial;      // [2, warps, lines, columns]

    static constexpr int kParts = 10;
    // Two rows are eight banks apart.
    static constexpr int kPartialColumns = kMaxGroups * kLines + 4;
    static constexpr int kPartialFloats = kLines * kPartialColumns;

    // Returns the bytes before stages.
    __host__ __device__ static int offsets(const LayersPlan& plan, int num_layers, int place_rows,
                                           int (&begin)[kParts]) {
        const int partial = 2 * kWarps * kPartialFloats * 4;
        const int sizes[kParts] = {(kMaxStages + 1) * 8,
                                   (num_layers + 1) * static_cast<int>(sizeof(LayerAt)),
                                   kMaxRows * static_cast<int>(sizeof(Tile)),
                                   16 + (kNumProducts + 1) * static_cast<int>(sizeof(ProductAt)),
                                   2 * kWarps * kLines * static_cast<int>(sizeof(Moments)),
                                   static_cast<int>(sizeof(NodeMemory)),
                                   plan.state_groups * place_rows * kLines * 4,
                                   partial,
                                   static_cast<int>(sizeof(ChoiceRows)),
                                   kMaxLayerStages * static_cast<int>(sizeof(StageAt))};
        int bytes = 0;
        for (int i = 0; i < kParts; ++i) {
            begin[i] = bytes;
            bytes += (sizes[i] + 15) / 16 * 16;
        }
        return (bytes + 127) / 128 * 128;
    }

    __device__ Memory(char* memory, const LayersParams& p) {
        int begin[kParts];
        char* stages = memory + offsets(p.plan, p.num_layers, p.place_rows, begin);
        auto* words = reinterpret_cast<uint64_t*>(memory + begin[0]);
        node_word = words + kMaxStages;
        layers = reinterpret_cast<LayerAt*>(memory + begin[1]);
        tiles = reinterpret_cast<Tile*>(memory + begin[2]);
        num_tiles = reinterpret_cast<int*>(memory + begin[3]);
        products = reinterpret_cast<ProductAt*>(num_tiles + 4);
        moments = reinterpret_cast<Moments*>(memory + begin[4]);
        nodes = reinterpret_cast<NodeMemory*>(memory + begin[5]);
        states = reinterpret_cast<float*>(memory + begin[6]);
        partial = reinterpret_cast<float*>(memory + begin[7]);
        choice = reinterpret_cast<ChoiceRows*>(memory + begin[8]);
        parts = reinterpret_cast<ChoiceParts*>(memory + begin[5]);
        ring = {words, layers, products, reinterpret_cast<StageAt*>(memory + begin[9]), stages};
    }
};

}  // namespace pybeam::cuda
