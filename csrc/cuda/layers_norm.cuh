// The norm of rows before a product, whose warps share the depth.
#pragma once

#include "layers_rows.cuh"

namespace pybeam::cuda {

// Weight and bias of a layer norm, the eight numbers of each pack of a lane.
template <class Number, int kPacks>
struct RowNorm {
    Vector scale[kPacks], shift[kPacks];

    // `begin` is where the numbers of the lane's first pack begin.
    __device__ void load(const LinearAt& linear, int depth, int begin) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int o_depth = begin + i * kWarps * kPack;
            scale[i] = shift[i] = {};
            if (o_depth < depth) {
                scale[i] = load_vector(reinterpret_cast<const uint4*>(linear.scale + o_depth));
                shift[i] = load_vector(reinterpret_cast<const uint4*>(linear.shift + o_depth));
            }
        }
    }

    // Adds the numbers of a warp's rows and their squares on the tensor cores, as products with
    // ones and with the rows themselves.
    __device__ static void leave_moments(const WarpRows<kPacks>& rows, Moments* moments) {
        const uint32_t ones = Number::pair(1.0f, 1.0f);
        float sum[2][4] = {}, square[2][4] = {};
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t x[2] = {rows.pack[i].word[2 * half],
                                       rows.pack[i].word[2 * half + 1]};
                Number::multiply(sum[half], {ones, 0, ones, 0}, x);
                Number::multiply(square[half], {x[0], 0, x[1], 0}, x);
            }
        }
        // a row with itself; ones give all lines the same sums
        const int lane = threadIdx.x % kWarpSize, line = lane / 4, row = lane % 4 * 2;
        const bool is_odd = line == row + 1;
        if (line == row || is_odd) {
            moments[line] = is_odd ? Moments{sum[0][1] + sum[1][1], square[0][1] + square[1][1]}
                                   : Moments{sum[0][0] + sum[1][0], square[0][0] + square[1][0]};
        }
    }

    // A layer norm; all threads meet. The squares of distances to the mean are those of numbers
    // less that of the mean, in float32, which is exact enough unless the mean is a thousand times
    // the deviation. `moments` are [warps, lines], and `share` is 1 / d.
    __device__ void normalise(WarpRows<kPacks>& rows, Moments* moments, float share,
                              float epsilon) const {
        const int lane = threadIdx.x % kWarpSize, own = threadIdx.x / kWarpSize;
        leave_moments(rows, moments + own * kLines);
        __syncthreads();
        Moments all{};
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            const Moments part = moments[warp * kLines + lane / 4];
            all.sum += part.sum, all.square += part.square;
        }
        const float mean = all.sum * share;
        const float variance = fmaxf(all.square * share - mean * mean, 0.0f);
        const float factor = inverse_root(variance + epsilon), begin = -mean * factor;
        // scales that are not there are 0
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float y[2];
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    const float x = Number::at(rows.pack[i], 2 * j + k) * factor + begin;
                    y[k] = x * Number::at(scale[i], 2 * j + k) + Number::at(shift[i], 2 * j + k);
                }
                rows.pack[i].word[j] = Number::pair(y[0], y[1]);
            }
        }
    }
};

}  // namespace pybeam::cuda
