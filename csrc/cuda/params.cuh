// Arguments of the CUDA kernels, and how they are launched.
#pragma once

#include <cuda_runtime_api.h>

#include "../params/select.h"

namespace pybeam::cuda {

constexpr int kThreads = 256;

// 32-bit numbers can then count the tokens of a row and the vectors that cover it.
constexpr int64_t kMaxVocab = INT32_MAX - 16 * kThreads * 16;

// Most rows of a beam, because a block holds the candidates of a beam, one or two per thread. The
// Triton kernel has no such limit.
constexpr int kMaxBlockWidth = 128;

// Largest logit of some tokens of a row and the sum of exp(logit - peak), NaN if there is a NaN or
// +inf among them.
struct Total {
    float peak;
    float sum;
};

// A row is cut into slices of `kThreads * vectors` 16-byte vectors.
struct SelectPlan {
    int vectors;
    int num_slices;
};

struct SelectParams : pybeam::SelectParams {
    int64_t num_entries;
    SelectPlan plan;
    // One word per beam, all zero; a launch leaves them zero. Launches that may
    // run at the same time need counters and scratch of their own.
    uint32_t* counter;
    char* scratch;
};

SelectPlan plan_select(const pybeam::SelectParams& params, int num_multiprocessors);
int64_t select_counters(const SelectParams& params);
int64_t select_scratch_bytes(const SelectParams& params);
cudaError_t launch_select(const SelectParams& params, cudaStream_t stream);

}  // namespace pybeam::cuda
