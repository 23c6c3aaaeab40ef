// The arguments of `select`, from ctypes.
#pragma once

#include "../../../csrc/cuda/params.cuh"

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

// Reads the fields of SelectParams in their order, and the number of entries.
inline pybeam::cuda::SelectParams select_params(Arguments& next) {
    pybeam::cuda::SelectParams p{};
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
    return p;
}
