// Threads of the CPU, so that ThreadSanitizer sees what waits for what.
#pragma once

#include <barrier>
#include <thread>

struct Index {
    unsigned x;
};

namespace cuda_resident {

constexpr int kThreads = 256, kWarpSize = 32;

// One thread of a launch.
struct Self {
    Index thread, block_index;
    void* block = nullptr;
    unsigned num_counts = 0, num_barriers = 0;
};

inline thread_local Self own_self;
inline Self& self() { return own_self; }
inline void pause() { std::this_thread::yield(); }
inline void dawdle() {}
inline void note_progress() {}

using Barrier = std::barrier<>;

template <class Begin, class Kernel>
void run_all(int number, Begin begin, Kernel kernel, unsigned) {
    std::vector<std::thread> threads;
    for (int i = 0; i < number; ++i) {
        threads.emplace_back([&, i] {
            own_self = begin(i);
            kernel();
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace cuda_resident

#define threadIdx (cuda_resident::self().thread)
#define blockIdx (cuda_resident::self().block_index)
