// What CUDA adds to C++ and a CPU can do, whoever runs the threads.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../../../csrc/cpu/numbers.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)

struct alignas(8) uint2 {
    uint32_t x, y;
};

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;

template <class T>
T __ldg(const T* address) {
    return *address;
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
using std::isnan;

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}

template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

inline int atomicAdd(int* address, int x) {
    return __atomic_fetch_add(address, x, __ATOMIC_RELAXED);
}

inline uint32_t atomicMin(uint32_t* address, uint32_t x) {
    uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (old > x && !__atomic_compare_exchange_n(address, &old, x, false, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED)) {
    }
    return old;
}

inline uint32_t atomicMax(uint32_t* address, uint32_t x) {
    uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (old < x && !__atomic_compare_exchange_n(address, &old, x, false, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED)) {
    }
    return old;
}

namespace pybeam::cuda {

inline void await_kernels() {}

inline int known_now(int x) { return x; }

inline float exp2_fast(float x) { return std::exp2(x); }

inline float float_from_half(uint16_t bits) { return to_float(Half{bits}); }

template <class Convert>
uint32_t max_of_pairs(uint32_t a, uint32_t b, Convert to_number) {
    uint32_t result = 0;
    for (int shift : {0, 16}) {
        const auto x = static_cast<uint16_t>(a >> shift), y = static_cast<uint16_t>(b >> shift);
        const bool takes_x = to_number(x) >= to_number(y) || std::isnan(to_number(y));
        result |= uint32_t{takes_x ? x : y} << shift;
    }
    return result;
}

inline uint32_t max_bfloat16x2(uint32_t a, uint32_t b) {
    return max_of_pairs(a, b, [](uint16_t bits) { return float_from_bits(uint32_t{bits} << 16); });
}

inline uint32_t max_float16x2(uint32_t a, uint32_t b) {
    return max_of_pairs(a, b, float_from_half);
}

}  // namespace pybeam::cuda
