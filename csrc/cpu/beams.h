// Helpers of the kernels on beams: lines of the arrays, and checks of values that serve as
// addresses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "../params/beams.h"

namespace pybeam {

[[noreturn]] inline void fail_beams(const std::string& what) {
    throw std::runtime_error("beams: " + what);
}

inline int32_t* ints_of(const Beams& beams, int64_t slot) {
    return beams.ints + slot * Beams::kNumInts;
}

inline float* floats_of(const Beams& beams, int64_t slot) {
    return beams.floats + slot * Beams::kNumFloats;
}

inline int64_t checked_slot(const Beams& beams, int32_t slot) {
    if (slot < 0 || slot >= beams.num_slots) fail_beams("`slot` is out of range");
    return slot;
}

inline int32_t checked_entries(const Beams& beams, int64_t slot) {
    const int32_t num_entries = ints_of(beams, slot)[Beams::kNumEntries];
    if (num_entries < 0 || num_entries > beams.max_entries) {
        fail_beams("a slot has more entries than there is room for");
    }
    return num_entries;
}

// Tokens of a row that count in n when this step is done.
inline int32_t next_length(const int32_t* ints) {
    return ints[Beams::kDepth] + 1 - ints[Beams::kScoredFrom];
}

// Whether a row has no room for another token when this step is done.
inline bool is_cut(const int32_t* ints) {
    return ints[Beams::kDepth] + 1 - ints[Beams::kPrefixLength] >= ints[Beams::kMaxLength];
}

// The two terms of `Scoring.final_score`.
inline double normed(const float* floats, double score, double length) {
    const double base = (floats[Beams::kOffset] + length) / floats[Beams::kScale];
    return score / std::pow(base, static_cast<double>(floats[Beams::kAlpha]));
}

inline double rewarded(const float* floats, double length) {
    return floats[Beams::kReward] * std::min<double>(floats[Beams::kCap], length);
}

inline float final_score(const float* floats, float score, int32_t tokens, bool is_ended) {
    const double length =
        is_ended ? tokens : tokens + static_cast<double>(floats[Beams::kCutLengthOffset]);
    return static_cast<float>(normed(floats, score, length) + rewarded(floats, length));
}

}  // namespace pybeam
