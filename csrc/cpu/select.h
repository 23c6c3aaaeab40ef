// Keys that order the candidates of one row.
#pragma once

#include <cstdint>

#include "numbers.h"

namespace pybeam {

// Unsigned numbers in the order of the floats; -0.0 and +0.0 are one.
inline uint32_t ordered_bits(float x) {
    const uint32_t bits = bits_from_float(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline float float_from_ordered(uint32_t ordered) {
    return float_from_bits(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// A larger key is a better candidate: the larger logit, then the smaller token.
inline uint64_t candidate_key(float logit, int64_t token) {
    return uint64_t{ordered_bits(logit)} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

inline float logit_of(uint64_t key) { return float_from_ordered(static_cast<uint32_t>(key >> 32)); }

inline int32_t token_of(uint64_t key) {
    return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Moves the best `limit` of `count` keys to the front and returns the least logit among them.
float keep_best(uint64_t* keys, int64_t count, int64_t limit);

}  // namespace pybeam
