// What several operators are told of: types, limits and the tokens that end a hypothesis.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PYBEAM_HOST_DEVICE __host__ __device__
#else
#define PYBEAM_HOST_DEVICE
#endif

namespace pybeam {

enum class DType { kFloat32, kBFloat16, kFloat16 };

// Rows of a beam; `pybeam.ops.MAX_WIDTH`.
constexpr int kMaxWidth = 128;

// `pybeam.ops.Finishing`.
enum class Finishing { kNone, kHeld, kRefill, kShrink };

constexpr int kMaxEos = 8;

// The tokens that end a hypothesis, at least one; -1 is none. Held hypotheses are given the first.
struct EosIds {
    int32_t id[kMaxEos];
    int32_t count;

    PYBEAM_HOST_DEVICE bool has(int32_t token) const {
        for (int32_t i = 0; i < count; ++i) {
            if (id[i] == token) return true;
        }
        return false;
    }
};

}  // namespace pybeam
