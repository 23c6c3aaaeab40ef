// A team of threads that runs many phases of tasks one after another. Between phases its members
// spin: a phase takes microseconds, less than it takes to wake a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "../counters.h"
#include "../threads.h"

namespace pybeam {

class Team {
  public:
    // Calls body(team) on every member. Members call `for_each` with the same tasks in the same
    // order. The threads are torch's, as everywhere, and are released in the end.
    template <class Body>
    static void run(int num_threads, const Body& body) {
        Shared shared;
        shared.counts = counts_kernels();
        if (num_threads <= 1) return body(Team(&shared, 1, true));
        shared.is_crowded = num_threads > static_cast<int>(std::thread::hardware_concurrency());
        struct Call {
            const Body& body;
            Shared& shared;
            int64_t num_threads;
        } call{body, shared, num_threads};
        // there may be fewer members than threads were asked for; the first one knows how many
        const auto join = [](int64_t begin, int64_t end, void* context) {
            auto& [body, shared, num_threads] = *static_cast<Call*>(context);
            if (begin == 0) shared.size = static_cast<int>((num_threads + end - 1) / end);
            shared.spin([&shared] { return shared.size > 0; });
            body(Team(&shared, shared.size, begin == 0));
        };
        run_on_threads(num_threads, join, &call);
    }

    // The calling thread.
    static Team alone() { return Team(nullptr, 1, true); }

    // Calls task(i) for i < num_tasks, and returns when all members are done with theirs. What
    // tasks wrote is seen by the tasks of later phases. Tasks may not throw.
    template <class Task>
    void for_each(int64_t num_tasks, const Task& task) const {
        if (size_ == 1) {
            for (int64_t i = 0; i < num_tasks; ++i) task(i);
            return;
        }
        for (int64_t i = shared_->next++; i < num_tasks; i = shared_->next++) task(i);
        wait();
    }

    int size() const { return size_; }

    // The clock of what this member does, see `counts_kernels`.
    Laps laps() const { return {shared_->counts, is_first_}; }

  private:
    struct Shared {
        alignas(64) std::atomic<int64_t> next{0};
        alignas(64) std::atomic<int> arrived{0};
        alignas(64) std::atomic<uint32_t> phase{0};
        std::atomic<int> size{0};
        bool is_crowded = false;  // there are more members than cores
        bool counts = false;

        template <class Condition>
        void spin(const Condition& is_over) const {
            // about as long as a phase takes; who still waits then may keep the others from running
            constexpr int kPauses = 1 << 10;
            for (int i = 0; !is_over(); ++i) {
                if (i < kPauses && !is_crowded) {
                    pause();
                } else {
                    std::this_thread::yield();
                }
            }
        }
    };

    Team(Shared* shared, int size, bool is_first)
        : shared_(shared), size_(size), is_first_(is_first) {}

    void wait() const {
        const uint32_t phase = shared_->phase.load();
        if (++shared_->arrived == size_) {
            shared_->arrived = 0;
            shared_->next = 0;
            ++shared_->phase;
            return;
        }
        shared_->spin([this, phase] { return shared_->phase.load() != phase; });
    }

    static void pause() {
#ifdef __x86_64__
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    Shared* shared_;
    int size_;
    bool is_first_;
};

}  // namespace pybeam
