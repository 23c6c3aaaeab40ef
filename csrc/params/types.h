// Types and limits that several kernels share, and the tokens that end a hypothesis.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PYBEAM_HOST_DEVICE __host__ __device__
#else
#define PYBEAM_HOST_DEVICE
#endif

namespace pybeam {

enum class DType { kFloat32, kBFloat16, kFloat16 };

// Most rows of a beam; `MAX_WIDTH` in Python.
constexpr int kMaxWidth = 128;

// The fate of a candidate that ends in EOS; `Finishing` in Python.
enum class Finishing { kNone, kHeld, kRefill, kShrink };

constexpr int kMaxEos = 8;

// The tokens that end a hypothesis, at least one; -1 stands for none. A held hypothesis emits the
// first one as a no-op.
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
