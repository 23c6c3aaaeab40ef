// The steps of which sublayers are made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "../dispatch.h"
#include "../params/layers.h"
#include "../scratch.h"
#include "linear.h"
#include "team.h"
#include "tree_attention.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pybeam {

// Asks for huge pages where memory has room for them: rows of a long source lie on more small pages
// than a processor keeps in mind.
inline void want_huge_pages([[maybe_unused]] char* memory, [[maybe_unused]] size_t size) {
#ifdef __linux__
    constexpr size_t kHugePage = size_t{2} << 20;
    const auto start = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (start + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (start + size) / kHugePage * kHugePage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Memory of a call, without meaning at first. Small blocks are kept for this thread's next
// call, because fresh memory costs a page fault every few rows.
class Memory {
  public:
    static constexpr size_t kAlignment = 64;  // of a cache line

    explicit Memory(size_t bytes) {
        // larger memory is given back after the call
        constexpr size_t kMostKeptBytes = size_t{64} << 20;
        static thread_local std::unique_ptr<char[]> kept;
        static thread_local size_t kept_size = 0;
        const size_t size = bytes + kAlignment;
        if (size > kMostKeptBytes) {
            once_ = std::make_unique_for_overwrite<char[]>(size);
            want_huge_pages(once_.get(), size);
        } else if (size > kept_size) {
            kept = std::make_unique_for_overwrite<char[]>(size);
            want_huge_pages(kept.get(), size);
            kept_size = size;
        }
        char* start = once_ != nullptr ? once_.get() : kept.get();
        poison(start, size);
        data_ = start + (kAlignment - reinterpret_cast<size_t>(start) % kAlignment) % kAlignment;
    }

    char* data() const { return data_; }

  private:
    std::unique_ptr<char[]> once_;
    char* data_;
};

// Divides memory into arrays of numbers per row. Without memory it counts what they need.
class Arrays {
  public:
    Arrays(char* memory, int64_t num_rows) : memory_(memory), num_rows_(num_rows) {}

    char* bytes(int64_t of_row) {
        char* taken = memory_ == nullptr ? nullptr : memory_ + size_;
        size_ +=
            (num_rows_ * of_row + Memory::kAlignment - 1) / Memory::kAlignment * Memory::kAlignment;
        return taken;
    }
    float* floats(int64_t of_row) {
        return reinterpret_cast<float*>(bytes(of_row * int64_t{sizeof(float)}));
    }
    size_t size() const { return size_; }

  private:
    char* memory_;
    int64_t num_rows_;
    size_t size_ = 0;
};

// Inputs of products as bfloat16 or int8.
struct PreparedRows {
    // for products of at most this depth
    PreparedRows(Arrays& arrays, int64_t depth)
        : values(arrays.bytes(std::max(prepared_stride(WeightType::kBFloat16, depth),
                                       prepared_stride(WeightType::kInt4, depth)))),
          scale(arrays.floats(1)),
          offset(reinterpret_cast<int32_t*>(arrays.floats(num_offsets(WeightType::kInt4, depth)))),
          large(reinterpret_cast<LargeInput*>(
              arrays.bytes(kNumLarge * int64_t{sizeof(LargeInput)}))) {}

    char* values;
    float* scale;
    int32_t* offset;
    LargeInput* large;
};

struct NoNorm {};

// The work of one member of a team: the same as that of the others, with some of the tasks.
class Sublayers {
  protected:
    Sublayers(const Team& team, int64_t num_rows, const PreparedRows& prepared)
        : team_(team), num_rows_(num_rows), laps_(team.laps()), prepared_(prepared) {}

    // y = f(W x + b), or y += W x + b where it `adds`. Rows of x are `x_stride` apart; 0: they
    // stand side by side.
    LinearParams product(const LinearWeights& weights, const float* x, float* y,
                         Activation activation, bool adds, int64_t x_stride = 0) const {
        LinearParams params{};
        params.x = x;
        params.x_stride = x_stride == 0 ? weights.depth : x_stride;
        params.rounded_x = prepared_.values;
        params.int8_x = {reinterpret_cast<int8_t*>(prepared_.values),
                         prepared_stride(weights.type, weights.depth),
                         prepared_.scale,
                         prepared_.offset,
                         num_offsets(weights.type, weights.depth),
                         weights.keeps_large ? prepared_.large : nullptr};
        params.weight = weights.weight;
        params.weight_type = weights.type;
        params.scale = weights.scale;
        params.bias = weights.bias;
        params.y = y;
        params.num_rows = num_rows_;
        params.depth = weights.depth;
        params.num_columns = weights.num_columns;
        params.activation = activation;
        params.adds = adds;
        return params;
    }

    // The same product with other weights.
    static LinearParams with_weights(LinearParams params, const LinearWeights& weights) {
        params.weight = weights.weight;
        params.scale = weights.scale;
        params.bias = weights.bias;
        params.num_columns = weights.num_columns;
        return params;
    }

    // The rows `first .. last` of a product. Their results go to y.
    static LinearParams rows_of(LinearParams params, int64_t first, int64_t last, float* y) {
        const int64_t stride = prepared_stride(params.weight_type, params.depth);
        params.x += first * params.x_stride;
        params.rounded_x = static_cast<char*>(params.rounded_x) + first * stride;
        params.int8_x = params.int8_x.from(first);
        params.y = y;
        params.num_rows = last - first;
        return params;
    }

    // before(row) makes the row of x, unless it is `NoNorm`.
    template <class BeforeRow>
    void prepare(const LinearTasks& tasks, int64_t depth, const BeforeRow& before) const {
        constexpr bool has_norm = !std::is_same_v<BeforeRow, NoNorm>;
        if (!has_norm && !tasks.prepares()) return;
        for_rows([&](int64_t row) {
            if constexpr (has_norm) before(row);
            tasks.prepare(row);
        });
        laps_.end(Kernel::kNorm, [&] { return rows_work(2 * depth); });
    }

    template <class BeforeRow>
    void run_product(Kernel kernel, const LinearParams& params, const BeforeRow& before) const {
        const LinearTasks tasks(params, team_.size());
        prepare(tasks, params.depth, before);
        team_.for_each(tasks.size(), [&](int64_t task) { tasks.run(task); });
        laps_.end(kernel, [&] { return kernel_work(params); });
    }

    // Columns `0 .. size` of x [rows, 2 size] become f of them times the other columns.
    void gate(Activation activation, float* x, int64_t size) const {
        constexpr int64_t kColumns = 512;  // of one task, so that few rows are several tasks
        const int64_t parts = (size + kColumns - 1) / kColumns;
        team_.for_each(num_rows_ * parts, [&](int64_t task) {
            const int64_t first = task % parts * kColumns;
            float* gates = x + task / parts * 2 * size + first;
            kernels().gate_row(activation, gates, gates + size, std::min(kColumns, size - first),
                               gates);
        });
        laps_.end(Kernel::kGate, [&] { return rows_work(3 * size); });
    }

    // Attention over the cells of a layer. Heads of a query stand side by side.
    void attend(Kernel kernel, TreeAttentionParams params, size_t layer, const LayerPool& pool,
                const float* query, int64_t query_stride, float* out) const {
        const int64_t item = pool.dtype == DType::kFloat32 ? 4 : 2;
        const char* key = static_cast<const char*>(pool.data) + layer * pool.layer_stride * item;
        params.key = key;
        params.value = key + pool.key_size * item;
        params.cell_dtype = pool.dtype;
        params.key_cell_stride = params.value_cell_stride = 2 * pool.key_size;
        run_attention(kernel, params, query, query_stride, out);
    }

    void run_attention(Kernel kernel, TreeAttentionParams& params, const float* query,
                       int64_t query_stride, float* out) const {
        params.query = query;
        params.query_row_stride = query_stride;
        params.query_head_stride = params.key_head_stride = params.value_head_stride =
            params.head_size;
        params.out = out;
        const AttentionTasks tasks(params, team_.size());
        team_.for_each(tasks.size(), [&](int64_t task) { tasks.run(task); });
        laps_.end(kernel, [&] { return kernel_work(params); });
    }

    // So many float32 of each row.
    KernelWork rows_work(int64_t numbers) const { return {4 * num_rows_ * numbers, 0}; }

    // Calls body(row) for all rows, some of which are one task where each row is little work.
    template <class Body>
    void for_rows(const Body& body, int64_t rows_of_task = 8) const {
        const int64_t tasks = (num_rows_ + rows_of_task - 1) / rows_of_task;
        team_.for_each(tasks, [&](int64_t task) {
            const int64_t end = std::min(num_rows_, (task + 1) * rows_of_task);
            for (int64_t row = task * rows_of_task; row < end; ++row) body(row);
        });
    }

    const Team& team_;
    const int64_t num_rows_;
    mutable Laps laps_;

  private:
    const PreparedRows& prepared_;
};

// Multiply-adds in float32 that take as long.
inline int64_t work_of(const LinearWeights& weights) {
    const int64_t work = weights.num_columns * weights.depth;
    if (is_integer(weights.type)) return work / 4;
    return weights.type == WeightType::kBFloat16 ? work / 2 : work;
}

// Members of a team for so many multiply-adds: less work is done by one thread, because others
// would have to be woken.
inline int team_size(int64_t work, int num_threads) {
    constexpr int64_t kWorthTeam = 1 << 22;
    return work < kWorthTeam ? 1 : num_threads;
}

// Runs a Member on every thread of a team, with Buffers that they share. Attention leaves padding
// as it is, so it is cleared before.
template <class Member, class Buffers, class Params>
void run_members(const Params& params, TreeAttentionParams attention, int64_t work) {
    Arrays counted(nullptr, params.num_rows);
    const Buffers without_memory(params, counted);
    const Memory memory(counted.size());
    Arrays arrays(memory.data(), params.num_rows);
    const Buffers buffers(params, arrays);
    attention.out = buffers.attended;
    clear_padding(attention);
    Team::run(team_size(work, params.num_threads),
              [&](const Team& team) { Member(params, buffers, team).run(); });
}

}  // namespace pybeam
