// `select.cu` for a C++ compiler, and an entry for ctypes.
#include "../../../csrc/cuda/select.cu"

#include <algorithm>
#include <vector>

namespace {

class Arguments {
  public:
    explicit Arguments(const int64_t* next) : next_(next) {}
    template <class T>
    void read(T*& pointer) {
        pointer = reinterpret_cast<T*>(*next_++);
    }
    template <class T>
    void read(T& number) {
        number = static_cast<T>(*next_++);
    }

  private:
    const int64_t* next_;
};

}  // namespace

// Reads the fields of SelectParams in their order, the number of entries and of multiprocessors.
// Returns 0, or 1 if a counter was not left at zero.
extern "C" int select_on_cpu(const int64_t* arguments, int runs_backwards) {
    pybeam::cuda::SelectParams p{};
    Arguments next(arguments);
    int num_multiprocessors;
    next.read(p.logits), next.read(p.dtype), next.read(p.row_stride), next.read(p.vocab_size);
    next.read(p.score), next.read(p.offset), next.read(p.width), next.read(p.is_ended);
    next.read(p.max_candidates), next.read(p.margin), next.read(p.local_margin);
    next.read(p.best_finished), next.read(p.forced), next.read(p.ban_eos);
    next.read(p.eos.count);
    for (int i = 0; i < p.eos.count; ++i) next.read(p.eos.id[i]);
    next.read(p.finishing), next.read(p.normalise), next.read(p.num_rows), next.read(p.num_beams);
    next.read(p.capacity), next.read(p.num_threads), next.read(p.token_out);
    next.read(p.parent_out), next.read(p.score_out), next.read(p.log_prob_out);
    next.read(p.count_out), next.read(p.num_finished_out), next.read(p.has_nan_out);
    next.read(p.num_entries);
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

// Counts those of the last launch.
extern "C" int64_t num_blocks() { return cuda_on_cpu::num_blocks; }
