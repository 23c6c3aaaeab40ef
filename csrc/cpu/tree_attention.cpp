#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "../params.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Query rows of one task: enough to repay copying 16-bit keys, few enough to balance long sources.
constexpr int64_t kTaskRows = 64;

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value < high) return;
    throw std::runtime_error("tree_attention: " + std::string(name) + " must be from " +
                             std::to_string(low) + " to " + std::to_string(high - 1) + ", but is " +
                             std::to_string(value));
}

void check_addresses(const TreeAttentionParams& p) {
    check_range("the first `offset`", p.offset[0], 0, 1);
    check_range("the last `offset`", p.offset[p.num_sources], p.num_rows, p.num_rows + 1);
    for (int64_t a = 0; a < p.num_sources; ++a) {
        check_range("`offset`", p.offset[a + 1], p.offset[a], p.num_rows + 1);
        check_range("`slot`", p.slot[a], 0, p.num_slots);
        check_range("`num_cells`", p.num_cells[p.slot[a]], 0, p.max_cells + 1);
        const int32_t* cell = p.cell + p.slot[a] * p.max_cells;
        bool is_inside = true;
        for (int64_t u = 0; u < p.num_cells[p.slot[a]]; ++u) {
            is_inside &= static_cast<uint32_t>(cell[u]) < static_cast<uint64_t>(p.num_pool_cells);
        }
        if (!is_inside) throw std::runtime_error("tree_attention: `cell` is not in the pool");
    }
    if (p.mask == nullptr) return;
    for (int64_t r = 0; r < p.num_rows; ++r) check_range("`bit`", p.bit[r], 0, 64 * p.mask_words);
}

}  // namespace

void launch_tree_attention(const TreeAttentionParams& params) {
    check_addresses(params);
    int64_t most_rows = 0, most_cells = 0, work = 0;
    for (int64_t a = 0; a < params.num_sources; ++a) {
        const int64_t rows = params.offset[a + 1] - params.offset[a];
        const int64_t cells = params.num_cells[params.slot[a]];
        most_rows = std::max(most_rows, rows);
        most_cells = std::max(most_cells, cells);
        work += rows * cells;
    }
    work *= 2 * params.num_heads * params.head_size;
    const int64_t group = params.num_heads / params.num_key_heads;
    const int64_t blocks = (most_rows * group + kTaskRows - 1) / kTaskRows;
    const int64_t num_tasks = params.num_sources * params.num_key_heads * blocks;
    const Attend attend = kernels().attend[static_cast<int>(params.dtype)];
    const int64_t scratch_size = attend_scratch(params, most_cells);
    parallel_for(threads_for(work, num_tasks, params.num_threads), num_tasks, [&](int64_t task) {
        static thread_local std::vector<float> scratch;
        if (static_cast<int64_t>(scratch.size()) < scratch_size) scratch.resize(scratch_size);
        const int64_t block = task % blocks;
        const int64_t key_head = task / blocks % params.num_key_heads;
        const int64_t source = task / blocks / params.num_key_heads;
        const int64_t rows = (params.offset[source + 1] - params.offset[source]) * group;
        const int64_t first = block * kTaskRows;
        if (first >= rows) return;
        attend(params, source, key_head, first, std::min(first + kTaskRows, rows), scratch.data());
    });
}

int64_t attend_scratch(const TreeAttentionParams& params, int64_t num_cells) {
    constexpr int64_t kMostWidth = 16;
    const auto padded = [](int64_t size) {
        return (size + kMostWidth - 1) / kMostWidth * kMostWidth;
    };
    const int64_t size = padded(params.head_size);
    return 2 * num_cells * size + kTaskRows * (2 * size + padded(num_cells));
}

}  // namespace pybeam
