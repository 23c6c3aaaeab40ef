// The exchange of `triton_kernels/persistent/exchange.py`: a thread is a program, a round of all threads a launch.
//
// Each phase has places of its own. A program that works in a phase reads all places of the phase before it, and
// one that does not goes on. Places are atomic and relaxed, so that no order comes from them; what else programs
// share is plain, so that ThreadSanitizer sees where it is read or written too early.

#include <atomic>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

constexpr int kPrograms = 6, kPhases = 24, kLaunches = 40, kAbsent = -1;
constexpr int kPlaces = kPhases * kPrograms;

std::atomic<int> places[2][kPlaces];
std::atomic<int> num_left{0};
int num_launches = 0;
std::atomic<int> num_wrong{0};

// programs that have something to do in a phase: all, or few
int num_working(int phase) { return phase % 4 == 1 ? 2 : kPrograms - phase % 2; }

void work(std::atomic<int>* own, int program, int phase, int launch) {
  if (phase > 0) {
    const std::atomic<int>* before = own + (phase - 1) * kPrograms;
    for (int i = 0; i < num_working(phase - 1); ++i) {
      int number = before[i].load(std::memory_order_relaxed);
      while (number == kAbsent) {
        std::this_thread::yield();
        number = before[i].load(std::memory_order_relaxed);
      }
      num_wrong += number != launch * kPhases + phase - 1;
    }
  }
  own[phase * kPrograms + program].store(launch * kPhases + phase, std::memory_order_relaxed);
}

void empty(std::atomic<int>* other, int program) {
#ifndef LEFT_FULL
  for (int i = program; i < kPlaces; i += kPrograms) other[i].store(kAbsent, std::memory_order_relaxed);
#endif
}

void leave() {
  if (num_left.fetch_add(1, std::memory_order_acq_rel) == kPrograms - 1) {
    num_left.store(0, std::memory_order_relaxed);
    num_launches += 1;
  }
}

int main() {
  for (auto& set : places) {
    for (auto& place : set) place.store(kAbsent, std::memory_order_relaxed);
  }
  std::barrier launched(kPrograms);
  std::vector<std::thread> programs;
  for (int program = 0; program < kPrograms; ++program) {
    programs.emplace_back([program, &launched] {
      for (int launch = 0; launch < kLaunches; ++launch) {
        launched.arrive_and_wait();
#ifdef ONE_SET
        const int set = 0;
#else
        const int set = num_launches % 2;
#endif
        for (int phase = 0; phase < kPhases; ++phase) {
          if (program < num_working(phase)) work(places[set], program, phase, launch);
          if (phase == 1) empty(places[1 - set], program);
        }
        leave();
      }
    });
  }
  for (auto& program : programs) program.join();
  num_wrong += num_left.load() != 0 || num_launches != kLaunches;
  std::printf("%d wrong\n", num_wrong.load());
  return num_wrong.load() != 0;
}
