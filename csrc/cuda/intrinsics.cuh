// Instructions that C++ has no name for; tests/ops/cuda_on_cpu has the same functions for a CPU.
#pragma once

#ifdef __CUDACC__

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace pybeam::cuda {

// Lets the next kernel of the stream be set up, and waits until all earlier ones have ended. See
// triton_kernels/dependent_launch.py.
__device__ inline void await_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "griddepcontrol.launch_dependents;\n\t"
        "griddepcontrol.wait;" ::
            : "memory");
#endif
}

// A number that is computed here, neither before nor behind the next barrier.
__device__ inline int known_now(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

__device__ inline float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// Two numbers at once; NaN loses.
__device__ inline uint32_t max_bfloat16x2(uint32_t a, uint32_t b) {
    asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}

__device__ inline uint32_t max_float16x2(uint32_t a, uint32_t b) {
    asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}

__device__ inline float float_from_half(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Adds one, or writes 0 behind `last`; returns the number before. Threads that arrive later see
// all that threads wrote before they arrived.
__device__ inline uint32_t count_arrival(uint32_t* counter, uint32_t last) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(last)
                 : "memory");
    return before;
}

// Whether the current device runs code of a kernel that was compiled for 9.0 or later.
template <class Params>
bool has_late_code(void (*kernel)(Params)) {
    cudaFuncAttributes code{};
    return cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= 90;
}

// Whether a kernel waits on the current device (`await_kernels`), so that it may begin early.
template <class Params>
bool can_begin_early(void (*kernel)(Params)) {
    static const char* const choice = std::getenv("PYBEAM_DEPENDENT_LAUNCH");
    if (choice != nullptr && std::strcmp(choice, "0") == 0) return false;
    return has_late_code(kernel);
}

template <class Params>
cudaError_t launch(void (*kernel)(Params), int64_t num_blocks, int num_threads, cudaStream_t stream,
                   const Params& params) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(num_blocks);
    config.blockDim = num_threads;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = can_begin_early(kernel);
    return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace pybeam::cuda

#endif
