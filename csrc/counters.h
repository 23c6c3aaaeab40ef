// Time and work of each kind of kernel of a step, counted while somebody asks for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace pybeam {

// `kernel_counts` names them. The first ones are parts of layers, or of a step; those behind
// `kCommit` are called one by one, where a model has no program.
enum class Kernel {
    kRead,
    kEmbed,
    kNorm,  // and rounding of what a product reads
    kQkv,
    kKeys,  // rotary embeddings, and copies to cells
    kSelfAttention,
    kSelfOut,
    kCrossQuery,
    kCrossAttention,
    kCrossOut,
    kInner,
    kGate,
    kInnerOut,
    kLogits,
    kSelect,  // and edits of logits
    kCommit,
    kProduct,
    kAttention,
    kLstmCell,
    kRows,
    kProcessors,
    kNumKernels,
};

// Bytes that must be read and written, and operations, two for a multiply-add.
struct KernelWork {
    int64_t bytes = 0, flop = 0;
};

inline std::atomic<bool> is_counting{false};
// whether this thread is between the reading of rows and their commit
inline thread_local bool is_in_step = false;

// Whether what this thread starts is counted.
inline bool counts_kernels() { return is_counting.load(std::memory_order_relaxed) && is_in_step; }

inline void begin_step() { is_in_step = is_counting.load(std::memory_order_relaxed); }

struct EndOfStep {
    ~EndOfStep() { is_in_step = false; }
};

inline int64_t nanoseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void count_time(Kernel kernel, int64_t nanoseconds);
void count_work(Kernel kernel, const KernelWork& work);

// Counting from now on, or no longer. Returns what was counted, and forgets it: a line
// "nanoseconds calls bytes operations name" for each kernel that was called.
std::string count_kernels(bool is_on);

// Counts its own life. `work` is called at the end.
template <class Work>
class Counted {
  public:
    Counted(Kernel kernel, const Work& work)
        : kernel_(kernel), work_(work), start_(counts_kernels() ? nanoseconds() : 0) {}
    Counted(const Counted&) = delete;
    ~Counted() {
        if (start_ == 0) return;
        count_time(kernel_, nanoseconds() - start_);
        count_work(kernel_, work_());
    }

  private:
    const Kernel kernel_;
    const Work work_;
    const int64_t start_;
};

// The work of kernels that read few numbers here and there.
inline constexpr auto unknown_work = [] { return KernelWork{}; };

// Counts what one thread does one after another. Without `counts` it does nothing.
class Laps {
  public:
    // All members of a team do the same work; the one that `is_timer` counts it.
    Laps(bool counts, bool is_timer)
        : counts_(counts), last_(counts && is_timer ? nanoseconds() : 0) {}

    // The time since the last lap is that of this kernel.
    void end(Kernel kernel) {
        if (last_ == 0) return;
        const int64_t now = nanoseconds();
        count_time(kernel, now - last_);
        last_ = now;
    }
    // `work` is called if it counts.
    template <class Work>
    void end(Kernel kernel, const Work& work) {
        end(kernel);
        add(kernel, work);
    }
    // Work of the whole team.
    template <class Work>
    void add(Kernel kernel, const Work& work) const {
        if (last_ != 0) count_work(kernel, work());
    }
    // Work of this member alone.
    template <class Work>
    void add_own(Kernel kernel, const Work& work) const {
        if (counts_) count_work(kernel, work());
    }

  private:
    const bool counts_;
    int64_t last_;
};

}  // namespace pybeam
