// Instructions of `decoder_layers` that C++ has no name for; tests/ops/cuda_resident has the same
// functions for a CPU.
#pragma once

#ifdef __CUDACC__

#include <cstdint>

namespace pybeam::cuda {

__device__ inline char* shared_memory() {
    extern __shared__ __align__(128) char memory[];
    return memory;
}

// Numbers that other blocks write meanwhile.
__device__ inline uint4 load_relaxed(const uint4* address) {
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address)
                 : "memory");
    return x;
}

__device__ inline uint2 load_relaxed(const uint2* address) {
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(address)
                 : "memory");
    return x;
}

// Then all can be seen that others wrote before they counted themselves there.
__device__ inline uint32_t load_acquire(const uint32_t* address) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
    return x;
}

__device__ inline void store_relaxed(uint32_t* address, uint32_t x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

__device__ inline void store_relaxed(uint4* address, uint4 x) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// sum += a b^T: a has 16 lines, b has 8, both have 16 numbers in each, two in a word.
__device__ inline void multiply_bfloat16(float (&sum)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void multiply_float16(float (&sum)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 1 / sqrt(x) of an x that is not denormal.
__device__ inline float inverse_root(float x) {
    asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// Two numbers in a word, the first in its low half. A NaN has not all bits set.
__device__ inline uint32_t bfloat16_pair(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ inline uint32_t float16_pair(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Four matrices of 8 x 8 numbers of shared memory, and `line` is where a line of one of them is: a
// lane gets two numbers of a column of each.
__device__ inline void load_transposed(uint32_t (&words)[4], const void* line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(line)))
                 : "memory");
}

__device__ inline float reciprocal_fast(float x) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// The host's compiler sees them, too.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline uint32_t shared_address(const void* address) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}

// A word of shared memory that knows when copies have come which so many threads have counted.
__device__ inline void begin_copies(uint64_t* word, int num_threads) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(word)),
                 "r"(num_threads)
                 : "memory");
}

// The copy engine sees words that this thread has made ready.
__device__ inline void show_to_copies() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void expect_copies(uint64_t* word, uint32_t num_bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(word)),
        "r"(num_bytes)
        : "memory");
}

// All three are multiples of 16.
__device__ inline void copy_ahead(void* to, const void* from, uint32_t num_bytes, uint64_t* word) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(num_bytes), "r"(shared_address(word))
        : "memory");
}

// Sixteen bytes, or zeros; a word counts them when the thread has asked it to.
__device__ inline void copy_or_clear(void* to, const void* from, bool is_there, uint64_t*) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}

// The word counts this thread when all that it has copied so has come.
__device__ inline void count_copies(uint64_t* word) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(word))
                 : "memory");
}

// `turn` is 0 for the first copies, then 1, then 0.
__device__ inline void await_copies(uint64_t* word, uint32_t turn) {
    asm volatile(
        "{\n\t"
        ".reg .pred has_come;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 has_come, [%0], %1;\n\t"
        "@!has_come bra again;\n\t"
        "}" ::"r"(shared_address(word)),
        "r"(turn)
        : "memory");
}

#endif

template <class Params>
cudaError_t launch_together(void (*kernel)(Params), int num_blocks, int num_threads, int num_bytes,
                            cudaStream_t stream, const Params& params) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, num_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute together{};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = num_blocks;
    config.blockDim = num_threads;
    config.dynamicSmemBytes = num_bytes;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace pybeam::cuda

#endif
