#include "../params/rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../counters.h"
#include "parallel.h"

namespace pybeam {
namespace {

// Bytes of one task: enough to be worth starting it, few enough for threads to share one wide row.
constexpr int64_t kTaskBytes = 1 << 14;
// Bytes that are copied in the time of one multiply-add, the unit of `threads_for`.
constexpr int64_t kBytesPerWork = 4;

constexpr int32_t kNoRow = -1;  // in an index: nothing is copied

void check_index(const char* name, const int32_t* index, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; ++i) {
        if (index[i] >= kNoRow && index[i] < size) continue;
        throw std::runtime_error("`" + std::string(name) + "` must be from 0 to " +
                                 std::to_string(size - 1) + ", or -1 for none, but is " +
                                 std::to_string(index[i]));
    }
}

struct Move {
    int32_t source;
    int32_t target;
};

constexpr int32_t kSpare = -1;  // a place beside the rows

// Orders the moves so that one after another they give the result of all at once: a row is
// overwritten only when no later move reads it. One row of each cycle moves to the spare place
// first.
class MoveOrder {
  public:
    explicit MoveOrder(const GatherRowsParams& params)
        : source_(params.num_rows, kNone), readers_(params.num_rows, 0) {
        std::vector<int32_t> targets;
        for (int64_t i = 0; i < params.num_moves; ++i) {
            if (params.source[i] == kNoRow || params.target[i] == kNoRow) continue;
            add(params.source[i], params.target[i]);
            targets.push_back(params.target[i]);
        }
        for (const int32_t target : targets) finish_chain(target);
        // only cycles are left: each of their rows is read once
        for (const int32_t target : targets) turn_cycle(target);
    }

    const std::vector<Move>& moves() const { return moves_; }

  private:
    static constexpr int32_t kNone = -2;

    void add(int32_t source, int32_t target) {
        if (source_[target] != kNone) {
            throw std::runtime_error("`target` names row " + std::to_string(target) + " twice");
        }
        source_[target] = source;
        ++readers_[source];
    }

    // Emits the move into `target` if no move reads it any more, then the move that this makes
    // possible.
    void finish_chain(int32_t target) {
        while (source_[target] != kNone && readers_[target] == 0) {
            const int32_t source = emit(source_[target], target);
            --readers_[source];
            target = source;
        }
    }

    void turn_cycle(int32_t target) {
        const int32_t source = source_[target];
        if (source == kNone) return;
        if (source == target) {
            source_[target] = kNone;
            return;
        }
        emit(target, kSpare);
        int32_t row = target;
        while (source_[row] != target) row = emit(source_[row], row);
        emit(kSpare, row);
    }

    int32_t emit(int32_t source, int32_t target) {
        moves_.push_back({source, target});
        if (target != kSpare) source_[target] = kNone;
        return source;
    }

    std::vector<int32_t> source_;  // per target whose move has not been emitted
    std::vector<int32_t> readers_;
    std::vector<Move> moves_;
};

// The bytes `begin .. begin + count` of every row.
void move_rows(const RowTensor& tensor, const std::vector<Move>& moves, int64_t begin,
               int64_t count) {
    char spare[kTaskBytes];
    const auto place = [&](int32_t row) {
        return row == kSpare ? spare : tensor.data + row * tensor.stride_bytes + begin;
    };
    for (const Move& move : moves) std::memcpy(place(move.target), place(move.source), count);
}

}  // namespace

void launch_gather_rows(const GatherRowsParams& p) {
    const Counted counted(Kernel::kRows, [&] {
        int64_t bytes = 0;
        for (int64_t t = 0; t < p.num_tensors; ++t)
            bytes += 2 * p.num_moves * p.tensors[t].row_bytes;
        return KernelWork{bytes, 0};
    });
    check_index("source", p.source, p.num_moves, p.num_rows);
    check_index("target", p.target, p.num_moves, p.num_rows);
    const MoveOrder order(p);
    struct Task {
        int64_t tensor;
        int64_t begin;
    };
    std::vector<Task> tasks;
    int64_t work = 0;
    for (int64_t t = 0; t < p.num_tensors; ++t) {
        for (int64_t begin = 0; begin < p.tensors[t].row_bytes; begin += kTaskBytes) {
            tasks.push_back({t, begin});
        }
        work += p.tensors[t].row_bytes * static_cast<int64_t>(order.moves().size());
    }
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    parallel_for(threads_for(work / kBytesPerWork, num_tasks, p.num_threads), num_tasks,
                 [&](int64_t i) {
                     const RowTensor& tensor = p.tensors[tasks[i].tensor];
                     const int64_t left = tensor.row_bytes - tasks[i].begin;
                     move_rows(tensor, order.moves(), tasks[i].begin, std::min(left, kTaskBytes));
                 });
}

void launch_scatter_rows(const ScatterRowsParams& p) {
    const Counted counted(Kernel::kRows,
                          [&] { return KernelWork{2 * p.num_index * p.pool.row_bytes, 0}; });
    check_index("index", p.index, p.num_index, p.num_pool_rows);
    const int64_t bytes = p.pool.row_bytes;
    const int64_t chunk = std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(bytes, 1));
    const int64_t num_tasks = (p.num_index + chunk - 1) / chunk;
    parallel_for(threads_for(p.num_index * bytes / kBytesPerWork, num_tasks, p.num_threads),
                 num_tasks, [&](int64_t task) {
                     const int64_t end = std::min(p.num_index, (task + 1) * chunk);
                     for (int64_t i = task * chunk; i < end; ++i) {
                         if (p.index[i] == kNoRow) continue;
                         std::memcpy(p.pool.data + p.index[i] * p.pool.stride_bytes,
                                     p.rows.data + i * p.rows.stride_bytes, bytes);
                     }
                 });
}

}  // namespace pybeam
