// The rows of a product on their way from the blocks that made them to the warps of a block.
#pragma once

#include "layers_block.cuh"

namespace pybeam::cuda {

// The rows of a warp in a chunk of the depth, as tensor cores want them: a lane has a row and eight
// numbers of each pack.
template <int kPacks>
struct WarpRows {
    Vector pack[kPacks];

    // Where a lane's numbers of pack i begin along the depth.
    __device__ static int depth_of(int chunk, int i) {
        const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
        return ((chunk * kPacks + i) * kWarps + warp) * kPack + lane % 4 * 8;
    }
};

// A tile of rows that stand in places, [rows, depth].
template <int kPacks>
class PlacedRows {
  public:
    // `first` is the first row of the tile.
    __device__ PlacedRows(const uint16_t* places, int depth, int first, int num_rows)
        : places_(places), depth_(depth), num_rows_(num_rows) {
        row_ = first + static_cast<int>(threadIdx.x) % kWarpSize / 4;
    }

    // Asks for a chunk; what there is not is 0.
    __device__ WarpRows<kPacks> load(int chunk) const {
        WarpRows<kPacks> rows;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const bool is_there = row_ < num_rows_ && rows.depth_of(chunk, i) < depth_;
            rows.pack[i] = is_there ? load_place(place_of(chunk, i)) : Vector{};
        }
        return rows;
    }

    __device__ void await_all(WarpRows<kPacks>& rows, int chunk) const {
        await(rows.pack, [&](int i) { return place_of(chunk, i); });
        __syncwarp();
    }

  private:
    __device__ const uint16_t* place_of(int chunk, int i) const {
        return places_ + spread(row_ * depth_ + WarpRows<kPacks>::depth_of(chunk, i));
    }

    const uint16_t* places_;
    int depth_, row_, num_rows_;
};

}  // namespace pybeam::cuda
