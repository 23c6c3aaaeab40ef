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

// How many groups of eight columns are this block's, for each product. One thread finds them,
// because a division takes as long as a product.
struct Shares {
    int num_groups[kNumProducts + 1];

    __device__ void find(const LayersParams& p) {
        for (int product = 0; product <= kLogits; ++product) {
            const int num_columns = columns_of(p, product);
            num_groups[product] = groups_of(num_columns, p.plan.num_blocks);
        }
    }

    __device__ static int columns_of(const LayersParams& p, int product) {
        return product == kQkv      ? 3 * p.width
               : product == kInner  ? p.inner_width
               : product == kLogits ? p.num_logits
                                    : p.width;
    }

    __device__ static int groups_of(int num_columns, int num_blocks) {
        const int block = blockIdx.x;
        return ((num_columns + kLines - 1) / kLines - block + num_blocks - 1) / num_blocks;
    }
};

// The sizes of a product, and the share of this block.
struct ProductSize {
    int num_columns, depth, num_groups;

    __device__ ProductSize(const LayersParams& p, const Shares& shares, int product)
        : num_columns(Shares::columns_of(p, product)),
          depth(product == kInnerOut ? p.inner_width : p.width),
          num_groups(shares.num_groups[product]) {}
};

// The first column of a group of this block.
__device__ inline int column_of(const LayersParams& p, int group) {
    return (group * p.plan.num_blocks + static_cast<int>(blockIdx.x)) * kLines;
}

template <int kPacks>
class WeightRing {
  public:
    // numbers of a row that the warps of a block multiply at once
    static constexpr int kChunk = kWarps * kPacks * kPack;
    // Columns are half a line of banks apart, so that eight lanes read eight banks of each.
    static constexpr int kColumnBytes = kChunk * 2 + 64;
    static constexpr int kStageBytes = kLines * kColumnBytes;

    __device__ static int num_chunks(int depth) { return (depth + kChunk - 1) / kChunk; }

    __device__ WeightRing(const LayersParams& p, const LayerAt* layers, const Shares& shares,
                          uint64_t* words, char* stages)
        : p_(p), layers_(layers), shares_(shares), words_(words), stages_(stages) {}

    // Makes the ring ready. All threads meet behind.
    __device__ void begin() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < p_.plan.num_stages; ++i) begin_copies(words_ + i);
            show_to_copies();
        }
    }

    // Asks for so many stages more; the last warp calls it.
    __device__ void ask(int num_stages) {
        for (int i = 0; i < num_stages; ++i) ask_for_one();
    }

    // The stage of a group in a chunk of the product that is next.
    __device__ const char* await_stage(int chunk, int group, int num_groups) const {
        int slot = slot_ + chunk * num_groups + group;
        const bool is_next_turn = slot >= p_.plan.num_stages;
        if (is_next_turn) slot -= p_.plan.num_stages;
        await_copies(words_ + slot, turn_ ^ is_next_turn);
        return stages_ + slot * kStageBytes;
    }

    // Goes on behind so many stages, which no thread reads any more.
    __device__ void leave(int num_stages) {
        slot_ += num_stages;
        if (slot_ >= p_.plan.num_stages) {
            slot_ -= p_.plan.num_stages;
            turn_ ^= 1;
        }
        if (threadIdx.x / kWarpSize == kWarps - 1) ask(num_stages);
    }

  private:
    struct Place {
        int layer = 0, product = 0, chunk = 0, group = 0;
    };

    __device__ void ask_for_one() {
        skip_others();
        if (asked_.layer > p_.num_layers) return;
        const ProductSize size(p_, shares_, asked_.product);
        const int lane = threadIdx.x % kWarpSize;
        const int begin = asked_.chunk * kChunk;
        const uint32_t num_bytes = min(kChunk, size.depth - begin) * 2;
        // the last columns of logits may be fewer
        const int column = column_of(p_, asked_.group);
        const int num_lines = min(kLines, size.num_columns - column);
        if (lane == 0) expect_copies(words_ + asked_slot_, num_lines * num_bytes);
        if (lane < num_lines) {
            const uint16_t* weight = asked_.product == kLogits
                                         ? p_.logits.weight
                                         : layers_[asked_.layer].linear[asked_.product].weight;
            char* to = stages_ + asked_slot_ * kStageBytes + lane * kColumnBytes;
            copy_ahead(to, weight + int64_t{column + lane} * size.depth + begin, num_bytes,
                       words_ + asked_slot_);
        }
        if (++asked_slot_ == p_.plan.num_stages) asked_slot_ = 0;
        if (++asked_.group < size.num_groups) return;
        asked_.group = 0;
        if (++asked_.chunk < num_chunks(size.depth)) return;
        asked_.chunk = 0;
        next_product();
    }

    // Products of which this block has no column.
    __device__ void skip_others() {
        while (asked_.layer <= p_.num_layers && shares_.num_groups[asked_.product] == 0) {
            next_product();
        }
    }

    // Behind the last layer there are logits alone.
    __device__ void next_product() {
        if (asked_.product == kLogits || ++asked_.product == kNumProducts) {
            ++asked_.layer;
            asked_.product = asked_.layer == p_.num_layers ? kLogits : 0;
        }
    }

    const LayersParams& p_;
    const LayerAt* layers_;
    const Shares& shares_;
    uint64_t* words_;
    char* stages_;
    Place asked_;
    int asked_slot_ = 0;
    int slot_ = 0;
    uint32_t turn_ = 0;
};

}  // namespace pybeam::cuda
