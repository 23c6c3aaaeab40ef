#include "../params/panels.h"

#include <algorithm>
#include <cstring>

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

// A panel is blocks of lines. A line has one unit of every column: of 2 bytes in narrow lines,
// which come first in a block, of 4 bytes in wide ones.
struct PanelShape {
    int64_t num_blocks, narrow_lines, wide_lines;

    int64_t bytes() const { return num_blocks * (2 * narrow_lines + 4 * wide_lines) * kPanel; }
};

PanelShape shape_of(WeightType type, int64_t depth) {
    switch (type) {
        case WeightType::kFloat16:
            return {depth, 1, 0};
        case WeightType::kBFloat16:
        case WeightType::kNarrow:
            return {(depth + 1) / 2, 0, 1};
        case WeightType::kInt8:
            return {(depth + 3) / 4, 0, 1};
        case WeightType::kInt4:
            return {(depth + kGroup - 1) / kGroup, 1, kGroup / 8};
        default:
            return {depth, 0, 1};
    }
}

template <int64_t kBytes>
void copy_lines(const char* const* from, int64_t count, int64_t* offset, char* panel) {
    for (int64_t i = 0; i < count; ++i, *offset += kPanel * kBytes) {
        for (int64_t c = 0; c < kPanel; ++c) {
            std::memcpy(panel + *offset + c * kBytes, from[c] + *offset, kBytes);
        }
    }
}

void copy_panel(const ColumnCopyParams& p, const PanelShape& shape, int64_t panel) {
    // the units of each column in the first line of its panel
    const char *narrow[kPanel], *wide[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) {
        const int64_t column = p.column[std::min(panel * kPanel + c, p.num_columns - 1)];
        const char* from =
            static_cast<const char*>(p.from.weight) + column / kPanel * shape.bytes();
        narrow[c] = from + column % kPanel * 2;
        wide[c] = from + column % kPanel * 4;
    }
    char* const to = p.panels + panel * shape.bytes();
    int64_t offset = 0;
    for (int64_t block = 0; block < shape.num_blocks; ++block) {
        copy_lines<2>(narrow, shape.narrow_lines, &offset, to);
        copy_lines<4>(wide, shape.wide_lines, &offset, to);
    }
}

void copy_columns(const ColumnCopyParams& p) {
    const PanelShape shape = shape_of(p.from.type, p.from.depth);
    for (int64_t panel = 0; panel * kPanel < p.num_columns; ++panel) copy_panel(p, shape, panel);
    for (int64_t c = 0; c < p.num_columns; ++c) {
        if (p.from.scale != nullptr) p.scale[c] = p.from.scale[p.column[c]];
        if (p.from.bias != nullptr) p.bias[c] = p.from.bias[p.column[c]];
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

int64_t panel_bytes(WeightType type, int64_t depth) { return shape_of(type, depth).bytes(); }

void launch_copy_columns(const ColumnCopyParams* params, int64_t num, int num_threads) {
    int64_t work = 0;
    for (int64_t i = 0; i < num; ++i) work += params[i].num_columns * params[i].from.depth;
    parallel_for(threads_for(work, num, num_threads), num,
                 [&](int64_t i) { copy_columns(params[i]); });
}

}  // namespace pybeam
