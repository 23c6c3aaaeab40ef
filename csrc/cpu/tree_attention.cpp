#include "tree_attention.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "../params/linear.h"
#include "../scratch.h"
#include "pair_kernels.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Most query rows of one task: over all its key heads, and of one key head. With more queries, keys
// are read less often. With fewer, scores stay in the first-level cache and threads can share a
// long source.
constexpr int64_t kMostQueries = 256, kMostRows = 96;
// Most scores of one task: until values are mixed they stay in the second-level cache.
constexpr int64_t kMostScores = 1 << 17;
// With fewer tasks per thread than this, every key head becomes a task of its own. Sources differ
// in length, and with few tasks threads would wait for the longest.
constexpr int64_t kTasksPerThread = 8;
// Fewest cells of a source that are worth packing for products of pairs.
constexpr int64_t kWorthPairs = 64;
// The widest vector of any instruction set.
constexpr int64_t kMostWidth = 16;

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value < high) return;
    throw std::runtime_error("tree_attention: " + std::string(name) + " must be from " +
                             std::to_string(low) + " to " + std::to_string(high - 1) + ", but is " +
                             std::to_string(value));
}

// Rows of a prompt must be at cells of their line.
void check_order(const TreeAttentionParams& p) {
    for (int64_t a = 0; a < p.num_sources; ++a) {
        for (int32_t row = p.offset[a]; row < p.offset[a + 1]; ++row) {
            check_range("`position`", p.position[row], 0, p.num_cells[p.slot[a]]);
        }
    }
}

// The heads of a source lie in the same cells, so they are one task unless that leaves threads
// idle.
int64_t heads_of_task(const TreeAttentionParams& params, int64_t rows, int64_t cells,
                      int64_t blocks, int num_threads) {
    if (num_threads > 1 && params.num_sources * blocks < kTasksPerThread * num_threads) return 1;
    const int64_t most = std::min(kMostQueries / std::max<int64_t>(rows, 1),
                                  kMostScores / std::max<int64_t>(rows * cells, 1));
    return std::clamp<int64_t>(most, 1, params.num_key_heads);
}

// The kernel for these dtypes, for rows with paths or without.
Attend attend_of(const TreeAttentionParams& params) {
    const Kernels& k = kernels();
    const bool is_rounded = params.cell_dtype != params.dtype;
    const auto dtype = static_cast<int>(params.dtype);
    if (params.path != nullptr) return is_rounded ? k.attend_paths_rounded : k.attend_paths[dtype];
    return is_rounded ? k.attend_rounded : k.attend[dtype];
}

// Cells that one row reads, at most; those of a path stand behind whole vectors of common ones.
int64_t most_cells_of(const TreeAttentionParams& params, int64_t slot) {
    const int64_t common = params.num_common(slot);
    return params.path == nullptr ? common : common + kMostWidth + params.path_length[slot];
}

// Nodes with which the paths of all rows of source a begin. They are the first ones of the list:
// a node beside them would have no row.
int64_t trunk_of(const TreeAttentionParams& p, int64_t a) {
    const int64_t slot = p.slot[a];
    int64_t trunk = p.path_length[slot];
    for (int64_t r = p.offset[a]; r < p.offset[a + 1]; ++r) {
        const int32_t* path = p.path + (slot * p.max_entries + p.entry[r]) * p.max_path;
        int64_t t = 0;
        while (t < trunk && path[t] == t) ++t;
        trunk = t;
    }
    return trunk;
}

// Numbers up to whole vectors.
int64_t padded(int64_t size) { return (size + kMostWidth - 1) / kMostWidth * kMostWidth; }

// Memory that `Attend` needs for queries, results, a tile of cells, scores, and positions of cells.
int64_t scratch_floats(const TreeAttentionParams& params, int64_t num_queries, int64_t num_cells) {
    const int64_t size = padded(params.head_size);
    const int64_t positions = params.reads_positions() ? num_cells : 0;
    return kCopiedCells * size + num_queries * (2 * size + padded(num_cells)) + positions;
}

// The same of `attend_pairs`, which has a head at a time.
int64_t pair_scratch_floats(const TreeAttentionParams& params, int64_t num_cells) {
    const auto panels = [](int64_t columns, int64_t depth) {
        return num_panels(columns) * kPanel * ((depth + 1) / 2);
    };
    const int64_t size = padded(params.head_size);
    return panels(num_cells, params.head_size) + panels(params.head_size, num_cells) +
           kMostWidth * size + 2 * kPairRows * (size + padded(num_cells)) + num_cells;
}

// Checks the paths of the rows of source a.
void check_paths(const TreeAttentionParams& p, int64_t a) {
    const int64_t slot = p.slot[a], num_cells = p.num_cells[slot];
    if (p.num_shared != nullptr) check_range("`num_shared`", p.num_shared[slot], 0, num_cells + 1);
    check_range("`path_length`", p.path_length[slot], 0, p.max_path + 1);
    const int64_t num_own = num_cells - p.num_common(slot);
    // a place that nobody sees is read too, and is then the first
    if (num_own == 0 && p.path_length[slot] > 0 && p.offset[a] < p.offset[a + 1]) {
        throw std::runtime_error("tree_attention: there are paths, but no cells for them");
    }
    for (int64_t r = p.offset[a]; r < p.offset[a + 1]; ++r) {
        check_range("`entry`", p.entry[r], 0, p.max_entries);
        const int32_t* path = p.path + (slot * p.max_entries + p.entry[r]) * p.max_path;
        for (int32_t t = 0; t < p.path_length[slot]; ++t)
            check_range("`path`", path[t], -1, num_own);
    }
}

}  // namespace

void check_addresses(const TreeAttentionParams& p) {
    check_range("the first `offset`", p.offset[0], 0, 1);
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
        if (p.path != nullptr) check_paths(p, a);
    }
    if (p.in_order) check_order(p);
    if (p.mask == nullptr) return;
    for (int64_t r = 0; r < p.num_rows; ++r)
        check_range("`entry`", p.entry[r], 0, 64 * p.mask_words);
}

KernelWork kernel_work(const TreeAttentionParams& p) {
    int64_t num_cells = 0, num_pairs = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = p.slot[a], rows = p.offset[a + 1] - p.offset[a];
        if (rows == 0) continue;
        num_cells += p.num_cells[slot];
        if (!p.in_order) {
            num_pairs +=
                rows * (p.num_common(slot) + (p.path == nullptr ? 0 : p.path_length[slot]));
            continue;
        }
        for (int64_t row = p.offset[a]; row < p.offset[a + 1]; ++row)
            num_pairs += p.position[row] + 1;
    }
    const auto item = [](DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; };
    const int64_t cells = 2 * num_cells * p.num_key_heads * p.head_size * item(p.cell_dtype);
    const int64_t rows = 2 * p.num_rows * p.num_heads * p.head_size * item(p.dtype);
    return {cells + rows, 4 * num_pairs * p.num_heads * p.head_size};
}

void clear_padding(const TreeAttentionParams& p) {
    const int64_t counted = p.offset[p.num_sources];
    if (counted == p.num_rows) return;
    const int64_t row = p.num_heads * p.head_size * (p.dtype == DType::kFloat32 ? 4 : 2);
    std::memset(static_cast<char*>(p.out) + counted * row, 0, (p.num_rows - counted) * row);
}

AttentionTasks::AttentionTasks(const TreeAttentionParams& params, int num_threads)
    : params_(params), num_threads_(num_threads) {
    if (params.path != nullptr) {
        for (int64_t a = 0; a < params.num_sources; ++a) trunk_.push_back(trunk_of(params, a));
        params_.trunk = trunk_.data();
    }
    int64_t most_rows = 0, most_cells = 0;
    for (int64_t a = 0; a < params.num_sources; ++a) {
        const int64_t rows = params.offset[a + 1] - params.offset[a];
        const int64_t cells = most_cells_of(params, params.slot[a]);
        most_rows = std::max(most_rows, rows);
        most_cells = std::max(most_cells, cells);
        work_ += rows * cells;
    }
    work_ *= 2 * params.num_heads * params.head_size;
    const int64_t group = params.num_heads / params.num_key_heads;
    const int64_t rows = std::min(most_rows * group, kMostRows);
    blocks_ = (most_rows * group + kMostRows - 1) / kMostRows;
    heads_ = heads_of_task(params, rows, most_cells, blocks_, num_threads);
    head_tasks_ = (params.num_key_heads + heads_ - 1) / heads_;
    scratch_size_ = scratch_floats(params, rows * heads_, most_cells);
    if (params.has_pairs) {
        scratch_size_ = std::max(scratch_size_, pair_scratch_floats(params, most_cells));
    }
}

void AttentionTasks::run(int64_t i) const {
    static thread_local Scratch<float> scratch;
    const int64_t group = params_.num_heads / params_.num_key_heads;
    AttendTask task;
    task.source = i / blocks_ / head_tasks_;
    task.next_source = std::min(i + num_threads_, size() - 1) / blocks_ / head_tasks_;
    task.first_head = i / blocks_ % head_tasks_ * heads_;
    task.last_head = std::min(task.first_head + heads_, params_.num_key_heads);
    task.first = i % blocks_ * kMostRows;
    const int64_t rows = params_.offset[task.source + 1] - params_.offset[task.source];
    task.last = std::min(task.first + kMostRows, rows * group);
    if (task.first >= task.last) return;
    const bool pays = params_.num_cells[params_.slot[task.source]] >= kWorthPairs;
    const Attend attend =
        params_.has_pairs && pays ? pair_kernels().attend_pairs : attend_of(params_);
    attend(params_, task, scratch.room(scratch_size_));
}

void launch_tree_attention(const TreeAttentionParams& params) {
    check_addresses(params);
    const Counted counted(Kernel::kAttention, [&] { return kernel_work(params); });
    const AttentionTasks tasks(params, params.num_threads);
    const int num_threads = threads_for(tasks.work(), tasks.size(), params.num_threads);
    parallel_for(num_threads, tasks.size(), [&](int64_t task) { tasks.run(task); });
    clear_padding(params);
}

}  // namespace pybeam
