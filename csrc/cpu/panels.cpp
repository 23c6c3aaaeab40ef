#include "../params/panels.h"

#include <algorithm>
#include <cstring>

#include "../params/linear.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Numbers of each row that are read in one go; so much of a panel stays in the nearest cache.
constexpr int64_t kBlock = 8;

template <class Number>
void turn(const char* rows, int64_t size, char* panel) {
    constexpr int64_t kBytes = sizeof(Number);
    for (int64_t first = 0; first < size; first += kBlock) {
        const int64_t last = std::min(size, first + kBlock);
        for (int64_t column = 0; column < kPanel; ++column) {
            for (int64_t i = first; i < last; ++i) {
                std::memcpy(panel + (i * kPanel + column) * kBytes,
                            rows + (column * size + i) * kBytes, kBytes);
            }
        }
    }
}

}  // namespace

void launch_fill_panels(const PanelParams& p) {
    const int64_t bytes = kPanel * p.size * p.item_bytes;
    const int num_threads =
        threads_for(p.num_panels * kPanel * p.size, p.num_panels, p.num_threads);
    parallel_for(num_threads, p.num_panels, [&](int64_t i) {
        const auto turn_panel = p.item_bytes == 2 ? turn<uint16_t> : turn<uint32_t>;
        turn_panel(p.rows + i * bytes, p.size, p.panels + i * bytes);
    });
}

}  // namespace pybeam
