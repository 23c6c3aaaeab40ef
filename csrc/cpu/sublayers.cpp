#include "sublayers.h"

#include <stdexcept>
#include <string>

namespace pybeam {

void check_cells(const LayerPool& pool, const int32_t* cell, int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
        if (cell[row] >= -1 && cell[row] < pool.num_cells) continue;
        throw std::runtime_error("layers: `cell` must be from 0 to " +
                                 std::to_string(pool.num_cells - 1) + ", or -1 for none, but is " +
                                 std::to_string(cell[row]));
    }
}

}  // namespace pybeam
