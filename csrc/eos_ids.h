// Which tokens end a hypothesis, for host and device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PYBEAM_HOST_DEVICE __host__ __device__
#else
#define PYBEAM_HOST_DEVICE
#endif

namespace pybeam {

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
