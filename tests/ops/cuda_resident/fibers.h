// Fibers, one of which runs at a time until it waits: fast, and the same in each run.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

struct Index {
    unsigned x;
};

namespace cuda_resident {

constexpr int kThreads = 256, kWarpSize = 32;
constexpr size_t kStackBytes = 1 << 15;

// One thread of a launch.
struct Self {
    Index thread, block_index;
    void* block = nullptr;
    unsigned num_counts = 0, num_barriers = 0;
};

struct Fiber {
    Self self;
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    ucontext_t start;
    jmp_buf state;
    bool has_started = false, is_done = false;
};

inline Fiber* current = nullptr;
inline jmp_buf scheduler;
inline std::function<void()> running;
inline uint64_t progress = 0;

inline Self& self() { return current->self; }
inline void note_progress() { ++progress; }

[[gnu::noinline]] inline void pause() {
    if (_setjmp(current->state) == 0) _longjmp(scheduler, 1);
}

inline std::minstd_rand generator;

// Others come first now and then, so that numbers reach their places in any order.
inline void dawdle() {
    while (generator() % 4 == 0) pause();
}

class Barrier {
  public:
    explicit Barrier(int expected) : expected_(expected) {}

    void arrive_and_wait() {
        const unsigned generation = generation_;
        if (++arrived_ == expected_) {
            arrived_ = 0;
            ++generation_;
            note_progress();
        }
        while (generation_ == generation) pause();
    }

  private:
    int expected_, arrived_ = 0;
    unsigned generation_ = 0;
};

inline void run_fiber() {
    running();
    current->is_done = true;
    note_progress();
    _longjmp(scheduler, 1);
}

[[gnu::noinline]] inline void resume(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.has_started) _longjmp(fiber.state, 1);
    fiber.has_started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, run_fiber, 0);
    setcontext(&fiber.start);
}

// Blocks take turns in an order that `seed` decides.
template <class Begin, class Kernel>
void run_all(int number, Begin begin, Kernel kernel, unsigned seed) {
    running = kernel;
    generator.seed(seed);
    std::vector<int> order(number / kThreads);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    std::vector<Fiber> fibers(number);
    for (int i = 0; i < number; ++i)
        fibers[i].self = begin(order[i / kThreads] * kThreads + i % kThreads);
    volatile int num_idle = 0;
    for (volatile bool is_live = true; is_live;) {
        const uint64_t before = progress;
        is_live = false;
        for (volatile int i = 0; i < number; i = i + 1) {
            if (fibers[i].is_done) continue;
            is_live = true;
            resume(fibers[i]);
        }
        // a fiber that reads on makes no progress for a while
        num_idle = progress == before ? num_idle + 1 : 0;
        if (num_idle == 1000) {
            std::fprintf(stderr, "the blocks wait for ever\n");
            std::abort();
        }
    }
}

}  // namespace cuda_resident

#define threadIdx (cuda_resident::self().thread)
#define blockIdx (cuda_resident::self().block_index)
