// Keys that order logits of one row, or candidates of one beam.
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

// A number and its place in a list, as one word that sorts: a larger key has the larger value, or
// the same value and the smaller index.
class Key {
  public:
    Key() = default;
    Key(float value, int64_t index)
        : bits_(uint64_t{ordered_bits(value)} << 32 | (kLast - static_cast<uint32_t>(index))) {}

    float value() const { return float_from_ordered(static_cast<uint32_t>(bits_ >> 32)); }
    int32_t index() const { return static_cast<int32_t>(kLast - static_cast<uint32_t>(bits_)); }

    friend bool operator>(Key a, Key b) { return a.bits_ > b.bits_; }

  private:
    static constexpr uint32_t kLast = 0xffffffffu;
    uint64_t bits_;
};

// Moves the largest `limit` of `count` keys to the front and returns the least value among them.
float keep_largest(Key* keys, int64_t count, int64_t limit);

}  // namespace pybeam
