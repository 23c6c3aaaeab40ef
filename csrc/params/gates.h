// Arguments of the kernels `glu`, `gated` and `lstm_cell`.
#pragma once

#include <cstdint>

#include "linear.h"

namespace pybeam {

// y [rows, size] = a sigmoid(b) of x [rows, 2 size] = [a, b].
struct GluParams {
    const float* x;
    int64_t x_stride;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

// y [rows, size] = f(a) b of x [rows, 2 size] = [a, b], f the activation.
struct GatedParams {
    const float* x;
    int64_t x_stride;
    Activation activation;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

// One step of an LSTM: gates [rows, 4 size] = [i, f, g, o] before their functions,
// cell_out = sigmoid(f) cell + sigmoid(i) tanh(g), hidden_out = sigmoid(o) tanh(cell_out).
struct LstmCellParams {
    const float* gates;
    int64_t gates_stride;
    const float* cell;
    int64_t cell_stride;
    float* hidden_out;  // contiguous
    float* cell_out;    // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

void launch_glu(const GluParams& params);
void launch_gated(const GatedParams& params);
void launch_lstm_cell(const LstmCellParams& params);

}  // namespace pybeam
