// Sums of the kernels about CTC.
#pragma once

#include <cmath>
#include <cstdint>

namespace pybeam {

// log(exp(a) + exp(b))
inline double log_add(double a, double b) {
    const double high = a < b ? b : a, low = a < b ? a : b;
    return low == -INFINITY ? high : high + std::log1p(std::exp(low - high));
}

// Whether there is neither NaN nor +inf among so many numbers.
inline bool are_log_probs(const float* x, int64_t size) {
    // an int, so that compilers see a sum of vectors
    int num_wrong = 0;
    for (int64_t i = 0; i < size; ++i) num_wrong |= !(x[i] < INFINITY);
    return num_wrong == 0;
}

}  // namespace pybeam
