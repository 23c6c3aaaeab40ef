#include "../params/rotary.h"

#include <stdexcept>
#include <string>

#include "../counters.h"
#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {

void check_positions(const int32_t* position, int64_t num_rows, const RotaryTable& table) {
    for (int64_t row = 0; row < num_rows; ++row) {
        if (position[row] >= 0 && position[row] < table.num_positions) continue;
        throw std::runtime_error("rotary: `position` must be from 0 to " +
                                 std::to_string(table.num_positions - 1) + ", but is " +
                                 std::to_string(position[row]));
    }
}

void launch_rotary(const RotaryParams& p) {
    check_positions(p.position, p.num_rows, p.table);
    const Counted counted(Kernel::kKeys,
                          [&] { return KernelWork{4 * 2 * p.num_rows * p.num_heads * p.size, 0}; });
    const RotateHead rotate_head = kernels().rotate_head;
    const int64_t half = p.size / 2;
    for_rows(p.num_rows, p.num_heads * p.size, p.num_threads, [&](int64_t row) {
        const int64_t angles = p.position[row] * half;
        for (int64_t h = 0; h < p.num_heads; ++h) {
            const float* x = p.x + row * p.x_row_stride + h * p.x_head_stride;
            rotate_head(x, p.table.cos + angles, p.table.sin + angles, half,
                        p.y + (row * p.num_heads + h) * p.size);
        }
    });
}

}  // namespace pybeam
