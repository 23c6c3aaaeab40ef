// `select.cu` for ThreadSanitizer, and entries for dlsym.
#include "../../../csrc/cuda/select.cu"

using pybeam::cuda::SelectParams;

extern "C" void plan(SelectParams* p) {
    // many multiprocessors, so that rows are cut into many slices
    p->plan = pybeam::cuda::plan_select(*p, 1 << 20);
}

extern "C" int64_t num_counters(const SelectParams* p) { return pybeam::cuda::select_counters(*p); }

extern "C" int64_t scratch_bytes(const SelectParams* p) {
    return pybeam::cuda::select_scratch_bytes(*p);
}

extern "C" void run(const SelectParams* p, int copy, int num_copies, unsigned seed) {
    cuda_threads::copy = copy;
    cuda_threads::num_copies = num_copies;
    cuda_threads::seed = seed;
    pybeam::cuda::launch_select(*p, nullptr);
}
