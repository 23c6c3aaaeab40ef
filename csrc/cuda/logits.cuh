// Logits as they lie in memory: 16-byte vectors of them, and their order.
#pragma once

#include <cstdint>

#include "intrinsics.cuh"

namespace pybeam::cuda {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int kVectorBytes = 16;

struct Vector {
    uint32_t word[4];
};

__device__ inline Vector load_vector(const uint4* address) {
    const uint4 loaded = __ldg(address);
    return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}

// Unsigned numbers in the order of the floats; -0.0 and +0.0 are one.
__device__ inline uint32_t ordered_bits(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float float_from_ordered(uint32_t ordered) {
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// One type of logit. `Bits` is how one is stored, `at` reads the j-th of a vector.
struct Float32 {
    using Bits = uint32_t;
    static constexpr Bits kMinusInfinityBits = 0xff800000u;

    __device__ static float to_float(Bits bits) { return __uint_as_float(bits); }
    __device__ static float at(const Vector& v, int j) { return __uint_as_float(v.word[j]); }

    __device__ static float largest(const Vector& v) {
        return fmaxf(fmaxf(at(v, 0), at(v, 1)), fmaxf(at(v, 2), at(v, 3)));
    }

    __device__ static void put(Vector& v, int j, Bits bits) { v.word[j] = bits; }
};

__device__ inline void put_half_word(Vector& v, int j, uint16_t bits) {
    const int shift = j % 2 * 16;
    v.word[j / 2] = (v.word[j / 2] & ~(0xffffu << shift)) | uint32_t{bits} << shift;
}

struct BFloat16 {
    using Bits = uint16_t;
    static constexpr Bits kMinusInfinityBits = 0xff80u;

    __device__ static float to_float(Bits bits) { return __uint_as_float(uint32_t{bits} << 16); }

    __device__ static float at(const Vector& v, int j) {
        const uint32_t word = v.word[j / 2];
        return __uint_as_float(j % 2 ? word & 0xffff0000u : word << 16);
    }

    __device__ static float largest(const Vector& v) {
        const uint32_t pair = max_bfloat16x2(max_bfloat16x2(v.word[0], v.word[1]),
                                             max_bfloat16x2(v.word[2], v.word[3]));
        return fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }

    __device__ static void put(Vector& v, int j, Bits bits) { put_half_word(v, j, bits); }
};

struct Float16 {
    using Bits = uint16_t;
    static constexpr Bits kMinusInfinityBits = 0xfc00u;

    __device__ static float to_float(Bits bits) { return float_from_half(bits); }

    __device__ static float at(const Vector& v, int j) {
        return to_float(static_cast<Bits>(v.word[j / 2] >> j % 2 * 16));
    }

    __device__ static float largest(const Vector& v) {
        const uint32_t pair =
            max_float16x2(max_float16x2(v.word[0], v.word[1]), max_float16x2(v.word[2], v.word[3]));
        return fmaxf(to_float(static_cast<Bits>(pair)), to_float(static_cast<Bits>(pair >> 16)));
    }

    __device__ static void put(Vector& v, int j, Bits bits) { put_half_word(v, j, bits); }
};

template <class Logit>
constexpr int kPerVector = kVectorBytes / sizeof(typename Logit::Bits);

// The j-th number of a vector, for a j that the compiler does not know.
template <class Logit>
__device__ float number_at(const Vector& v, int j) {
    using Bits = typename Logit::Bits;
    const int bit = j * static_cast<int>(sizeof(Bits)) * 8;
    const uint64_t first = uint64_t{v.word[1]} << 32 | v.word[0];
    const uint64_t second = uint64_t{v.word[3]} << 32 | v.word[2];
    return Logit::to_float(static_cast<Bits>((bit < 64 ? first : second) >> bit % 64));
}

}  // namespace pybeam::cuda
