// The weights of a block, on their way to shared memory long before it multiplies them.
//
// A stage has eight columns of a product, each with a chunk of its depth. Stages stand in a ring in
// the order in which the block needs them, so a copy engine reads weights while blocks wait for one
// another.
#pragma once

#include "block.cuh"
#include "decoder_layers.cuh"
#include "layers_intrinsics.cuh"

namespace pybeam::cuda {

// The sizes of a product, the share of this block, and where the rows and results stand among the
// places of a layer. Threads find them once, because a division takes as long as a product.
//
// Blocks share a product that is deeper than a chunk: each has one chunk of more columns.
struct alignas(16) ProductAt {
    int num_groups;   // of eight columns, this block's
    int first, step;  // the first of all groups that is this block's, and from one to the next
    int num_columns, depth;
    int chunk, num_chunks;  // this block's, and all
    int x, y;
    float share;  // of a number in the mean of a row
    bool has_norm, adds;

    __device__ ProductAt(const LayersParams& p, int product)
        : num_columns(columns_of(p, product)),
          depth(product == kInnerOut ? p.inner_width : p.width),
          num_chunks(chunks_of(p.width, depth)),
          share(1.0f / depth),
          has_norm(product == kQkv || product == kQuery || product == kInner || product == kLogits),
          adds(!has_norm) {
        const int block = blockIdx.x;
        step = p.plan.num_blocks / num_chunks;
        chunk = block / step, first = block % step;
        const int all = (num_columns + kLines - 1) / kLines;
        num_groups = chunk < num_chunks ? (all - first + step - 1) / step : 0;
        // in the order of products, with what follows two of them; a layer begins with the end of
        // the one before
        const int size = kSpread * p.place_rows * p.width;
        x = (0x8976438 >> 4 * product & 15) * size;
        y = (0x0897540 >> 4 * product & 15) * size;
        if (product == kQkv || product == kLogits) x -= static_cast<int>(p.num_places);
    }

    // The first column of a group of this block.
    __device__ int column_of(int group) const { return (first + group * step) * kLines; }

    __device__ static int columns_of(const LayersParams& p, int product) {
        return product == kQkv      ? 3 * p.width
               : product == kInner  ? p.inner_width
               : product == kLogits ? p.num_logits
                                    : p.width;
    }
};

// The first column of a group of this block, where no blocks share it.
__device__ inline int column_of(const LayersParams& p, int group) {
    return (group * p.plan.num_blocks + static_cast<int>(blockIdx.x)) * kLines;
}

// Where the weights of a stage lie. Bytes.
struct alignas(16) StageAt {
    uint32_t begin, stride;  // of its first column in the weight of its product
    uint16_t num_bytes;      // of a column
    uint8_t num_lines, product;
};

// All that a block needs to know of its stages, in shared memory.
struct RingMemory {
    uint64_t* words;
    const LayerAt* layers;      // the logits behind the last layer
    const ProductAt* products;  // [kNumProducts + 1]
    StageAt* stage_at;          // [kMaxLayerStages], those of a layer
    char* stages;
};

template <int kPacks>
class WeightRing {
  public:
    // numbers of a row that the warps of a block multiply at once
    static constexpr int kChunk = chunk_of(kPacks);
    // Columns are half a line of banks apart, so that eight lanes read eight banks of each.
    static constexpr int kColumnBytes = kChunk * 2 + 64;
    static constexpr int kStageBytes = kLines * kColumnBytes;

    __device__ WeightRing(const LayersParams& p, const RingMemory& memory)
        : p_(p), memory_(memory) {}

    // Makes the words ready. All threads meet behind.
    __device__ void begin() const {
        if (static_cast<int>(threadIdx.x) < p_.plan.num_stages) {
            begin_copies(memory_.words + threadIdx.x, 1);
            show_to_copies();
        }
    }

    // Lists the stages of a layer, and asks for the first ones of all. All threads meet here.
    __device__ void list_stages() {
        for (int product = 0; product < kNumProducts; ++product) {
            const ProductAt& at = memory_.products[product];
            const int i = static_cast<int>(threadIdx.x) - num_layer_stages_;
            num_layer_stages_ += at.num_groups;
            if (i < 0 || i >= at.num_groups) continue;
            const int begin = at.chunk * kChunk;
            const uint32_t stride = at.depth * 2;
            memory_.stage_at[threadIdx.x] = {
                at.column_of(i) * stride + begin * 2, stride,
                static_cast<uint16_t>(min(kChunk, at.depth - begin) * 2), kLines,
                static_cast<uint8_t>(product)};
        }
        __syncthreads();
        ask(p_.plan.num_stages);
    }

    // One of the stages that are next.
    __device__ const char* await_stage(int i) const {
        int slot = slot_ + i;
        const bool is_next_turn = slot >= p_.plan.num_stages;
        if (is_next_turn) slot -= p_.plan.num_stages;
        await_copies(memory_.words + slot, turn_ ^ is_next_turn);
        return memory_.stages + slot * kStageBytes;
    }

    // Goes on behind so many stages, which no thread reads any more.
    __device__ void leave(int num_stages) {
        slot_ += num_stages;
        if (slot_ >= p_.plan.num_stages) {
            slot_ -= p_.plan.num_stages;
            turn_ ^= 1;
        }
        ask(num_stages);
    }

  private:
    // A stage: which of a layer, or of the logits behind the last one.
    struct Place {
        int layer = 0, stage = 0, slot = 0;
    };

    __device__ Place behind(Place at, int num_stages) const {
        at.slot += num_stages;
        if (at.slot >= p_.plan.num_stages) at.slot -= p_.plan.num_stages;
        at.stage += num_stages;
        while (at.layer < p_.num_layers && at.stage >= num_layer_stages_) {
            at.stage -= num_layer_stages_;
            ++at.layer;
        }
        return at;
    }

    // Asks for so many stages more. Warps take turns, the last first: others may have columns to
    // finish.
    __device__ void ask(int num_stages) {
        const int own = kWarps - 1 - known_now(threadIdx.x / kWarpSize);
#pragma unroll 1
        for (int i = own; i < num_stages; i += kWarps) ask_for(behind(asked_, i));
        asked_ = behind(asked_, num_stages);
    }

    __device__ void ask_for(const Place& place) const {
        const int lane = threadIdx.x % kWarpSize;
        const uint16_t* weight;
        uint32_t stride, num_bytes;
        int num_lines = kLines;
        if (place.layer < p_.num_layers) {
            const StageAt at = memory_.stage_at[place.stage];
            weight = memory_.layers[place.layer].linear[at.product].weight + at.begin / 2;
            stride = at.stride, num_bytes = at.num_bytes;
        } else {
            if (place.stage >= memory_.products[kLogits].num_groups) return;
            const int column = column_of(p_, place.stage);
            weight = p_.logits.weight + int64_t{column} * p_.width;
            stride = num_bytes = p_.width * 2;
            // the last columns may be fewer
            num_lines = min(kLines, p_.num_logits - column);
        }
        uint64_t* word = memory_.words + place.slot;
        if (lane == 0) expect_copies(word, num_lines * num_bytes);
        if (lane < num_lines) {
            char* to = memory_.stages + place.slot * kStageBytes + lane * kColumnBytes;
            copy_ahead(to, weight + lane * (stride / 2), num_bytes, word);
        }
    }

    const LayersParams& p_;
    const RingMemory& memory_;
    int num_layer_stages_ = 0;
    Place asked_;
    int slot_ = 0;
    uint32_t turn_ = 0;
};

}  // namespace pybeam::cuda
