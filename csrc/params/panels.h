// Arguments of the kernels `fill_panels` and `copy_columns`, which make panels of packed weights.
#pragma once

#include <cstdint>

#include "layers.h"

namespace pybeam {

// Panels [panels, size, kPanel] get the columns of rows [panels * kPanel, size]. Numbers have
// `item_bytes`, 2 or 4.
struct PanelParams {
    const char* rows;
    char* panels;
    int64_t num_panels;
    int64_t size;
    int64_t item_bytes;
    int num_threads;
};

void launch_fill_panels(const PanelParams& params);

// Some columns of a layer become a layer of their own: its panels, and scales and biases where the
// other has them. Columns that fill up the last panel are copies of the last one.
struct ColumnCopyParams {
    LinearWeights from;
    const int32_t* column;
    int64_t num_columns;
    char* panels;
    float* scale;
    float* bias;
};

// Bytes that one panel takes.
int64_t panel_bytes(WeightType type, int64_t depth);

// Makes `num` layers.
void launch_copy_columns(const ColumnCopyParams* params, int64_t num, int num_threads);

}  // namespace pybeam
