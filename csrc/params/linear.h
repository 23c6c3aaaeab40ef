// Arguments of the kernel `linear`.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

// Columns of a panel of packed weights; `PANEL` in Python.
constexpr int kPanel = 64;
constexpr int64_t num_panels(int64_t num_columns) { return (num_columns + kPanel - 1) / kPanel; }
// Neighbours along the depth that share a scale in int4, `GROUP` in Python, and what they take.
constexpr int64_t kGroup = 32, kGroupBytes = kGroup / 2 + 2;

// The dtypes of packed weights. Narrow ones are float32 that bfloat16 holds exactly.
enum class WeightType { kFloat32, kBFloat16, kFloat16, kInt8, kNarrow, kInt4 };

// Whether inputs become int8.
constexpr bool is_integer(WeightType type) {
    return type == WeightType::kInt8 || type == WeightType::kInt4;
}

// Inputs of a row that may be larger than int8, where weights say so.
constexpr int64_t kNumLarge = 4;

// An input that is larger than int8 by 128 times `high`, which stands where the input stands in its
// group of four, as wide as other values. The rest of it stands among those.
struct LargeInput {
    int64_t group;
    int16_t high[4];
};

// Rows of int8, as wide as the kernel that multiplies them wants each value, and the number that
// each integer of a row stands for. A row takes `stride` bytes, and zeros fill them up. An offset
// is added to all sums of products with as many neighbours as it is of: with a whole row, or with a
// group of int4.
struct Int8Rows {
    int8_t* values;
    int64_t stride;
    float* scale;
    int32_t* offset;
    int64_t num_offsets = 1;      // of a row
    LargeInput* large = nullptr;  // kNumLarge of a row; or null: no input is larger than int8

    Int8Rows from(int64_t row) const {
        return {values + row * stride, stride,
                scale + row,           offset + row * num_offsets,
                num_offsets,           large == nullptr ? nullptr : large + row * kNumLarge};
    }
};

// The functions that follow a product; `Activation` in Python.
enum class Activation : int32_t { kNone, kRelu, kGelu, kTanhGelu, kSilu, kTanh };
constexpr int kNumActivations = 6;

// y [rows, columns] = f(x W^T + bias), f the activation; or y += x W^T + bias where `adds`.
// W is packed into panels of kPanel columns. In float32 and float16 it is [panels, depth, kPanel],
// with zeros behind the last column. In bfloat16 two neighbours of the depth stand together:
// [panels, ceil(depth / 2), kPanel, 2], with a zero behind an odd depth. x is rounded to bfloat16
// then, too. Narrow weights are packed in the same way, as int16, for an even depth; x stays as it
// is. In int8 four neighbours stand together, each as weight + 128:
// [panels, ceil(depth / 4), kPanel, 4]. Every column has a scale, and so has every row of x, which
// becomes int8, too: y = f(q q_W^T * (scale of the row * scale of the column) + bias). With
// `keeps_large` the kNumLarge largest inputs of a row may be integers of up to 127 * 128, and its
// scale is made for the others.
// In int4 a column has a scale for each group g: y = f((sum of q_g q_Wg^T * scale_g) * scale of the
// row + bias), the groups in their order. W is [panels, ceil(depth / kGroup)] blocks: kPanel scales
// in bfloat16, then [kGroup / 8, kPanel, 4] bytes. Each has a weight + 8 in its low half, and the
// weight that comes four later in its high half.
struct LinearParams {
    const float* x;
    int64_t x_stride;
    void* rounded_x;  // [rows, ceil(depth / 2)] rounded pairs, for bfloat16 weights
    Int8Rows int8_x;  // [rows, depth], for int8 and int4 weights
    const void* weight;
    WeightType weight_type;
    bool keeps_large;    // of inputs of int8 weights
    const float* scale;  // [columns] of int8 weights, else null
    const float* bias;   // or null
    float* y;            // contiguous
    int64_t num_rows;
    int64_t depth;
    int64_t num_columns;
    Activation activation;
    bool adds;
    int64_t panels_of_task;  // neighbours that one thread multiplies, 0: not known
    int num_threads;
};

void launch_linear(LinearParams params);

}  // namespace pybeam
