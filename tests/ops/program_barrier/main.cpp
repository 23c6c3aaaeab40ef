// The barrier of `triton_kernels/persistent/barrier.py`: a thread is a program, a round of all threads a launch.
//
// As in the kernel, a program that has nothing to do in a phase does not wait for the phase before it, and
// later phases write to the memory of earlier ones. Plain numbers are what programs leave for others, so
// ThreadSanitizer sees where a program reads or writes one too early.

#include <atomic>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

#ifdef RELAXED
constexpr auto kArrive = std::memory_order_relaxed;
#else
constexpr auto kArrive = std::memory_order_release;
#endif

constexpr int kPrograms = 6, kPhases = 24, kBuffers = 3, kLaunches = 40;

std::atomic<unsigned> counters[kPhases + 1];
int numbers[kBuffers][kPrograms];
std::atomic<int> num_wrong{0};

std::atomic<unsigned>& counter_of(int phase) {
#ifdef SHARED_COUNTER
  return counters[1];
#else
  return counters[phase + 1];
#endif
}

unsigned wanted_behind(int phase) {
#ifdef SHARED_COUNTER
  return kPrograms * (phase + 1);
#else
  (void)phase;
  return kPrograms;
#endif
}

// programs that have something to do in a phase: all, or few
int num_working(int phase) { return phase % 4 == 1 ? 2 : kPrograms - phase % 2; }

void work(int program, int phase, int launch) {
  if (phase > 0) {
    while (counter_of(phase - 1).load(std::memory_order_acquire) < wanted_behind(phase - 1)) {
      std::this_thread::yield();
    }
    const int* before = numbers[(phase - 1) % kBuffers];
    for (int i = 0; i < num_working(phase - 1); ++i) {
      num_wrong += before[i] != launch * kPhases + phase - 1;
    }
  }
  numbers[phase % kBuffers][program] = launch * kPhases + phase;
}

void leave() {
  if (counters[0].fetch_add(1, std::memory_order_acq_rel) == kPrograms - 1) {
#ifdef LEFT_ALONE
    counters[0].store(0, std::memory_order_relaxed);
#else
    for (auto& counter : counters) counter.store(0, std::memory_order_relaxed);
#endif
  }
}

int main() {
  std::barrier launched(kPrograms);
  std::vector<std::thread> programs;
  for (int program = 0; program < kPrograms; ++program) {
    programs.emplace_back([program, &launched] {
      for (int launch = 0; launch < kLaunches; ++launch) {
        launched.arrive_and_wait();
        for (int phase = 0; phase < kPhases; ++phase) {
          if (program < num_working(phase)) work(program, phase, launch);
          counter_of(phase).fetch_add(1, kArrive);
        }
        leave();
      }
    });
  }
  for (auto& program : programs) program.join();
  for (const auto& counter : counters) num_wrong += counter.load() != 0;
  std::printf("%d wrong\n", num_wrong.load());
  return num_wrong.load() != 0;
}
