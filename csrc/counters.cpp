#include "counters.h"

#include <array>

namespace pybeam {
namespace {

constexpr int kNumKernels = static_cast<int>(Kernel::kNumKernels);

constexpr std::array<const char*, kNumKernels> kNames{
    "read",
    "embed",
    "norm",
    "queries, keys, values",
    "keys to cells",
    "attention to hypotheses",
    "output of hypotheses",
    "queries of sources",
    "attention to sources",
    "output of sources",
    "inner layer",
    "gate",
    "output of inner",
    "logits",
    "select",
    "commit",
    "products",
    "attention",
    "lstm cell",
    "rows of states",
    "processors",
};

// Several engines may count at once.
struct Counter {
    std::atomic<int64_t> nanoseconds{0}, calls{0}, bytes{0}, flop{0};
};

std::array<Counter, kNumKernels> counters;

Counter& counter_of(Kernel kernel) { return counters[static_cast<size_t>(kernel)]; }

void add(std::atomic<int64_t>& counter, int64_t number) {
    counter.fetch_add(number, std::memory_order_relaxed);
}

std::string taken(std::atomic<int64_t>& counter) {
    return std::to_string(counter.exchange(0, std::memory_order_relaxed)) + " ";
}

}  // namespace

void count_time(Kernel kernel, int64_t nanoseconds) {
    add(counter_of(kernel).nanoseconds, nanoseconds);
}

void count_work(Kernel kernel, const KernelWork& work) {
    Counter& counter = counter_of(kernel);
    add(counter.calls, 1);
    add(counter.bytes, work.bytes);
    add(counter.flop, work.flop);
}

std::string count_kernels(bool is_on) {
    is_counting.store(is_on, std::memory_order_relaxed);
    std::string lines;
    for (int i = 0; i < kNumKernels; ++i) {
        Counter& counter = counters[i];
        const bool was_called = counter.calls.load(std::memory_order_relaxed) > 0;
        const std::string line = taken(counter.nanoseconds) + taken(counter.calls) +
                                 taken(counter.bytes) + taken(counter.flop);
        if (was_called) lines += line + kNames[i] + "\n";
    }
    return lines;
}

}  // namespace pybeam
