// `select` among logits whose product has left their peaks and totals: the arguments.
#pragma once

#include "params.cuh"

namespace pybeam::cuda {

// Neighbouring columns whose largest logit is a peak: `GROUP` in triton_kernels/peaked_product.py.
constexpr int kPeakColumns = 64;
// Peaks of a row are padded to a multiple of it.
constexpr int kPeaksAtOnce = kThreads / 2;

struct PeakedParams {
    SelectParams select;  // of logits in 16 bits, whose rows begin at multiples of 16 bytes
    const float* peaks;   // [rows, num_slices * kPeaksAtOnce], -inf behind the last group
    const Total* totals;  // [rows, num_totals], of some columns each
    int num_slices;
    int num_totals;
};

cudaError_t launch_peaked(const PeakedParams& params, cudaStream_t stream);

}  // namespace pybeam::cuda
