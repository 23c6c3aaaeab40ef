// `select.cu` and `select_peaked.cu` for a C++ compiler, and entries for ctypes.
#include "../../../csrc/cuda/select.cu"
#include "../../../csrc/cuda/select_peaked.cu"

#include <algorithm>
#include <vector>

#include "select_arguments.h"

// Takes what `select_params` reads, and the number of multiprocessors. Returns 0, or 1 if a counter
// was not left at zero.
extern "C" int select_on_cpu(const int64_t* arguments, int runs_backwards) {
    Arguments next(arguments);
    pybeam::cuda::SelectParams p = select_params(next);
    int num_multiprocessors;
    next.read(num_multiprocessors);
    p.plan = pybeam::cuda::plan_select(p, num_multiprocessors);
    std::vector<uint32_t> counters(pybeam::cuda::select_counters(p), 0);
    std::vector<char> scratch(pybeam::cuda::select_scratch_bytes(p), char(0xff));
    p.counter = counters.data();
    p.scratch = scratch.data();
    cuda_on_cpu::runs_backwards = runs_backwards != 0;
    pybeam::cuda::launch_select(p, nullptr);
    return std::any_of(counters.begin(), counters.end(), [](uint32_t n) { return n != 0; });
}

// Takes what `select_params` reads, the peaks and totals, and how many there are of a row.
extern "C" void select_peaked_on_cpu(const int64_t* arguments, int runs_backwards) {
    Arguments next(arguments);
    pybeam::cuda::PeakedParams p{};
    p.select = select_params(next);
    next.read(p.peaks), next.read(p.totals), next.read(p.num_slices), next.read(p.num_totals);
    cuda_on_cpu::runs_backwards = runs_backwards != 0;
    pybeam::cuda::launch_peaked(p, nullptr);
}

// Counts those of the last launch.
extern "C" int64_t num_blocks() { return cuda_on_cpu::num_blocks; }
