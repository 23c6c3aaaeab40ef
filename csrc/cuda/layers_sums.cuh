// The sums of a product that blocks share, each of which has a chunk of the depth.
#pragma once

#include "layers_block.cuh"

namespace pybeam::cuda {

// Those of a row and two columns of a group. They stand behind the other places of a layer, all
// chunks of a group one behind another, in float32.
class SharedSums {
  public:
    // `column` is one of a group's.
    __device__ SharedSums(const LayersParams& p, const ProductAt& at, uint16_t* places, int row,
                          int column)
        : at_(at),
          place_rows_(p.place_rows),
          places_(places + p.place_rows * product_places(p.width, p.inner_width)),
          own_(2 * (row * kLines + column)) {}

    // Leaves the sum of this block's chunk for the block that finishes the columns.
    __device__ void leave_share(int group, float2 sum) const {
        uint32_t* place = place_of(group, at_.chunk);
        store_relaxed(place, __float_as_uint(sum.x));
        store_relaxed(place + 1, __float_as_uint(sum.y));
    }

    // The sum of all chunks, in their order.
    __device__ float2 await_shares(int group) const {
        float2 sum{0, 0};
#pragma unroll 1
        for (int first = 0; first < at_.num_chunks; first += kAtOnce) {
            uint2 part[kAtOnce];
            bool is_short;
#pragma unroll
            for (uint2& x : part) x = uint2{kAbsent, kAbsent};
            do {
                is_short = false;
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    const bool is_absent = max(part[i].x, part[i].y) == kAbsent;
                    if (first + i >= at_.num_chunks || !is_absent) continue;
                    const uint32_t* place = place_of(group, first + i);
                    part[i] = load_relaxed(reinterpret_cast<const uint2*>(place));
                    is_short = true;
                }
            } while (is_short);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i >= at_.num_chunks) continue;
                sum.x += __uint_as_float(part[i].x), sum.y += __uint_as_float(part[i].y);
            }
        }
        return sum;
    }

  private:
    // sums that are on their way at once
    static constexpr int kAtOnce = 4;

    __device__ uint32_t* place_of(int group, int chunk) const {
        const int begin = (group * at_.num_chunks + chunk) * place_rows_ * 2 * kLines;
        return reinterpret_cast<uint32_t*>(places_ + spread(begin + own_));
    }

    const ProductAt& at_;
    int place_rows_;
    uint16_t* places_;
    int own_;
};

}  // namespace pybeam::cuda
