// `decoder_layers.cu` for a C++ compiler, and entries for ctypes.
#include <cstddef>

#include "../../../csrc/cuda/decoder_layers.cu"
#include "../cuda_on_cpu/select_arguments.h"

using pybeam::cuda::LayersParams;

namespace {

constexpr size_t kCallersBytes = offsetof(LayersParams, choice);

LayersParams params_of(const void* given) {
    LayersParams p{};
    std::memcpy(&p, given, kCallersBytes);
    return p;
}

}  // namespace

// How many bytes of parameters callers must know of.
extern "C" int64_t num_param_bytes() { return kCallersBytes; }

// Plans a launch; returns whether there is one.
extern "C" int plan_on_cpu(void* given, int num_multiprocessors, int shared_bytes) {
    LayersParams p = params_of(given);
    p.plan = pybeam::cuda::plan_layers(p, num_multiprocessors, shared_bytes);
    std::memcpy(given, &p, kCallersBytes);
    return p.plan.num_blocks > 0;
}

extern "C" void layers_on_cpu(const void* given, unsigned seed) {
    cuda_resident::seed = seed;
    pybeam::cuda::launch_layers(params_of(given), nullptr);
}

// Takes the arguments of `select`, too. Other memory holds numbers that nobody has written.
extern "C" void choice_on_cpu(const void* given, const int64_t* arguments, unsigned seed) {
    LayersParams p = params_of(given);
    Arguments next(arguments);
    pybeam::cuda::ChoiceAt& choice = p.choice;
    choice.select = select_params(next);
    choice.num_slices = pybeam::cuda::choice_slices(p.num_logits, p.plan.num_blocks);
    const int64_t num_entries = choice.select.num_entries;
    const int64_t num_peaks = num_entries * choice.num_slices * pybeam::cuda::kChoiceGroups;
    const auto peaks = std::make_unique<float4[]>(num_peaks / 4);
    std::memset(peaks.get(), 0x7f, num_peaks * sizeof(float));
    std::vector<pybeam::cuda::Total> totals(num_entries * p.plan.num_blocks, {1e30f, 1e30f});
    choice.peaks = reinterpret_cast<float*>(peaks.get()), choice.totals = totals.data();
    cuda_resident::seed = seed;
    pybeam::cuda::launch_layers(p, nullptr);
}
