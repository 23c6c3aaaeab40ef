// Arguments of the kernel `linear`.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

// Columns of a panel of packed weights; `PANEL` in Python.
constexpr int kPanel = 64;

struct Pair;

// The functions that follow a product; `Activation` in Python.
enum class Activation : int32_t { kNone, kRelu, kGelu, kTanhGelu, kSilu, kTanh };
constexpr int kNumActivations = 6;

// y [rows, columns] = f(x W^T + bias), f the activation; or y += x W^T + bias where `adds`.
// W is packed into panels of kPanel columns. In float32 and float16 it is [panels, depth, kPanel],
// with zeros behind the last column. In bfloat16 two neighbours of the depth stand together:
// [panels, ceil(depth / 2), kPanel, 2], with a zero behind an odd depth. x is rounded to bfloat16
// then, too.
struct LinearParams {
    const float* x;
    int64_t x_stride;
    const Pair* rounded_x;  // [rows, ceil(depth / 2)], made by the launch
    const void* weight;
    DType weight_dtype;
    const float* bias;  // or null
    float* y;           // contiguous
    int64_t num_rows;
    int64_t depth;
    int64_t num_columns;
    Activation activation;
    bool adds;
    int num_threads;
};

void launch_linear(LinearParams params);

}  // namespace pybeam
