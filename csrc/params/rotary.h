// Arguments of the kernel `rotary`.
#pragma once

#include <cstdint>

namespace pybeam {

// Cosines and sines, both [positions, half]: the first 2 * half numbers of a head are turned.
struct RotaryTable {
    const float* cos;
    const float* sin;
    int64_t num_positions;
    int64_t half;
};

// Turns the pairs (x[i], x[i + size / 2]) of every head of a row by the angles of its position.
struct RotaryParams {
    const float* x;
    int64_t x_row_stride, x_head_stride;
    const int32_t* position;
    RotaryTable table;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t num_heads;
    int64_t size;
    int num_threads;
};

// Raises std::runtime_error if a position is not in the table.
void check_positions(const int32_t* position, int64_t num_rows, const RotaryTable& table);
void launch_rotary(const RotaryParams& params);

}  // namespace pybeam
