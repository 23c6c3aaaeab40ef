// Storage types of 16-bit floats and their scalar conversions.
#pragma once

#include <cstdint>
#include <cstring>

namespace pybeam {

struct BFloat16 {
    uint16_t bits;
};

struct Half {
    uint16_t bits;
};

// Two numbers that are neighbours along the depth of a product.
struct Pair {
    BFloat16 even, odd;
};

// Four weights of one column, neighbours along the depth of a product, each as weight + 128.
struct Bytes {
    uint8_t byte[4];
};

// What 32 weights of one column in int4 take, with their scale. Those of a panel lie mixed, as
// `LinearParams` says.
struct Int4Group {
    uint8_t byte[18];
};

inline float float_from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline uint32_t bits_from_float(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// The one with the even index is in the low half.
inline uint32_t bits_of(Pair x) { return uint32_t{x.odd.bits} << 16 | x.even.bits; }

inline float to_float(float x) { return x; }

inline float to_float(BFloat16 x) { return float_from_bits(uint32_t{x.bits} << 16); }

inline float to_float(Half x) {
    const uint32_t sign = uint32_t{x.bits} >> 15 << 31;
    const uint32_t magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00u)
        return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // the product renormalises subnormals, and is exact
    const float value = float_from_bits(magnitude << 13) * 0x1p112f;
    return float_from_bits(sign | bits_from_float(value));
}

inline void from_float(float x, float* out) { *out = x; }

inline void from_float(float x, BFloat16* out) {
    const uint32_t bits = bits_from_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        out->bits = 0x7fc0;
        return;
    }
    out->bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline void from_float(float x, Half* out) {
    const uint32_t bits = bits_from_float(x);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
        // adding 0.5 puts the unit of a subnormal half at the last bit of the sum
        const float shifted = float_from_bits(magnitude) + 0.5f;
        half = bits_from_float(shifted) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    }
    out->bits = static_cast<uint16_t>(sign | half);
}

}  // namespace pybeam
