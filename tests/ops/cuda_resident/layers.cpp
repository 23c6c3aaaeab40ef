// `decoder_layers.cu` for a C++ compiler, and entries for ctypes.
#include "../../../csrc/cuda/decoder_layers.cu"

using pybeam::cuda::LayersParams;

// How many bytes of parameters callers must know of.
extern "C" int64_t num_param_bytes() { return sizeof(LayersParams); }

// Plans a launch; returns whether there is one.
extern "C" int plan_on_cpu(LayersParams* p, int num_multiprocessors, int shared_bytes) {
    p->plan = pybeam::cuda::plan_layers(*p, num_multiprocessors, shared_bytes);
    return p->plan.num_blocks > 0;
}

extern "C" void layers_on_cpu(const LayersParams* p, unsigned seed) {
    cuda_resident::seed = seed;
    pybeam::cuda::launch_layers(*p, nullptr);
}
