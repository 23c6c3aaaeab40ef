// Runs `select` with one block at a time and with several, and compares the results bit by bit.
// Arguments: copies of the library, one for each block that runs at a time.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda_runtime_api.h"
// after the header that stands in for CUDA's
#include "../../../csrc/cuda/params.cuh"

namespace {

using pybeam::cuda::SelectParams;

struct Library {
    void (*plan)(SelectParams*);
    int64_t (*num_counters)(const SelectParams*);
    int64_t (*scratch_bytes)(const SelectParams*);
    void (*run)(const SelectParams*, int, int, unsigned);

    explicit Library(const char* path) {
        void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            std::puts(dlerror());
            std::exit(1);
        }
        load(handle, "plan", plan), load(handle, "num_counters", num_counters);
        load(handle, "scratch_bytes", scratch_bytes), load(handle, "run", run);
    }

  private:
    template <class Function>
    static void load(void* handle, const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(handle, name));
    }
};

struct Results {
    std::vector<int32_t> token, parent, count, num_finished;
    std::vector<float> score, log_prob;
    std::vector<char> has_nan;

    bool operator==(const Results&) const = default;
};

// Beams of two rows; the number is the finishing rule.
struct Case {
    static constexpr int kBeams = 2, kWidth = 2, kEntries = kBeams * kWidth, kCapacity = 8;
    int vocab_size, finishing;
    std::vector<float> logits, score, margin = std::vector<float>(kBeams, 3.0f);
    std::vector<int32_t> offset{0, kWidth, 2 * kWidth}, width{4, 4}, max_candidates{3, 3};
    std::unique_ptr<bool[]> is_ended = std::make_unique<bool[]>(kEntries);

    explicit Case(int number) : vocab_size(2500), finishing(number) {
        std::mt19937 random(number);
        std::normal_distribution<float> normal;
        logits.resize(kEntries * stride());
        for (float& x : logits) x = 2 * normal(random);
        for (int i = 0; i < kEntries; ++i) {
            score.push_back(-std::abs(normal(random)));
            is_ended[i] = finishing == 1 && i % kWidth == 1;
        }
    }

    int stride() const { return vocab_size + 3; }

    SelectParams params(Results& r) {
        SelectParams p{};
        // not aligned
        p.logits = logits.data() + 1, p.dtype = pybeam::DType::kFloat32;
        p.row_stride = stride(), p.vocab_size = vocab_size;
        p.score = score.data(), p.offset = offset.data(), p.width = width.data();
        p.is_ended = finishing == 1 ? is_ended.get() : nullptr;
        p.max_candidates = max_candidates.data(), p.margin = margin.data();
        p.eos.count = 1, p.eos.id[0] = 2;
        p.finishing = static_cast<pybeam::Finishing>(finishing), p.normalise = true;
        p.num_rows = p.num_entries = kEntries, p.num_beams = kBeams, p.capacity = kCapacity;
        for (auto* numbers : {&r.token, &r.parent}) numbers->assign(kBeams * kCapacity, 7);
        for (auto* numbers : {&r.score, &r.log_prob}) numbers->assign(kBeams * kCapacity, 7);
        for (auto* numbers : {&r.count, &r.num_finished}) numbers->assign(kBeams, 7);
        r.has_nan.assign(kBeams, 7);
        p.token_out = r.token.data(), p.parent_out = r.parent.data();
        p.score_out = r.score.data(), p.log_prob_out = r.log_prob.data();
        p.count_out = r.count.data(), p.num_finished_out = r.num_finished.data();
        p.has_nan_out = reinterpret_cast<bool*>(r.has_nan.data());
        return p;
    }
};

Results select(const std::vector<Library>& libraries, size_t num_copies, Case& input) {
    Results results;
    SelectParams p = input.params(results);
    libraries[0].plan(&p);
    std::vector<uint32_t> counter(libraries[0].num_counters(&p), 0);
    std::vector<char> scratch(libraries[0].scratch_bytes(&p), char(0xff));
    p.counter = counter.data(), p.scratch = scratch.data();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < num_copies; ++i)
        threads.emplace_back([&, i] { libraries[i].run(&p, i, num_copies, input.finishing); });
    for (std::thread& thread : threads) thread.join();
    for (const uint32_t count : counter) {
        if (count == 0) continue;
        std::puts("a counter is not left at zero");
        std::exit(1);
    }
    return results;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Library> libraries(argv + 1, argv + argc);
    int num_different = 0;
    for (const int number : {1, 2}) {
        Case input(number);
        const bool same = select(libraries, 1, input) == select(libraries, argc - 1, input);
        std::printf("case %d: %s\n", number, same ? "the same" : "DIFFERENT");
        num_different += !same;
    }
    return num_different;
}
