#include "pair_kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../params/linear.h"
#include "numbers.h"

namespace pybeam {

#if defined(__x86_64__) || defined(PYBEAM_HAS_NEON_EXTENSIONS)
namespace {

#ifdef __x86_64__
constexpr const Kernels& kWithPairs = kAvx512Bf16Kernels;
constexpr const Kernels& kWithoutPairs = kAvx512VnniKernels;
#else
constexpr const Kernels& kWithPairs = kNeonBf16Kernels;
constexpr const Kernels& kWithoutPairs = kNeonDotprodKernels;
#endif
constexpr const char* kPairs = "pairs";
constexpr const char* kFloat32 = "float32";
// A product of this size takes some microseconds and stays in the second-level cache.
constexpr int64_t kRows = 48, kDepth = 256;
constexpr int kTurns = 8;
// Pairs must be this much faster, so that noise does not choose between equals.
constexpr double kWorthPairs = 1.2;

double seconds_of(const Kernels& kernels, const LinearParams& params) {
    const auto start = std::chrono::steady_clock::now();
    kernels.multiply_rows[static_cast<int>(WeightType::kBFloat16)](params, 0, 0, kRows);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const Kernels* faster_kernels() {
    // zeros: no CPU multiplies them faster than other numbers
    const std::vector<float> x(kRows * kDepth), weight(kPanel * kDepth / 2);
    std::vector<float> y(kRows * kPanel), rounded(x);
    LinearParams params{};
    params.rounded_x = rounded.data();
    params.weight = weight.data();
    params.weight_type = WeightType::kBFloat16;
    params.y = y.data();
    params.num_rows = kRows;
    params.depth = kDepth;
    params.num_columns = kPanel;
    double pairs = 1.0, widened = 1.0;
    for (int turn = 0; turn < kTurns; ++turn) {
        pairs = std::min(pairs, seconds_of(kWithPairs, params));
        widened = std::min(widened, seconds_of(kWithoutPairs, params));
    }
    return pairs * kWorthPairs < widened ? &kWithPairs : &kWithoutPairs;
}

// Whether they have an instruction for pairs.
bool has_pairs(const Kernels& kernels) { return kernels.rounded_pair_bytes == sizeof(Pair); }

const Kernels* find(const char* name) {
    if (std::strcmp(name, kPairs) == 0) return &kWithPairs;
    if (std::strcmp(name, kFloat32) == 0) return &kWithoutPairs;
    throw std::runtime_error("bfloat16 products must be pairs or float32, but are " +
                             std::string(name));
}

// The way that a program has set, or null. A CPU without pairs cannot try both.
std::atomic<const Kernels*> chosen = nullptr;

const Kernels* choose() {
    const char* name = std::getenv("PYBEAM_BFLOAT16");
    return name != nullptr && *name != '\0' ? find(name) : faster_kernels();
}

}  // namespace

const Kernels& pair_kernels() {
    const Kernels& all = kernels();
    if (!has_pairs(all)) return all;
    if (const Kernels* set = chosen.load(std::memory_order_relaxed)) return *set;
    static const Kernels* const own_choice = choose();
    return *own_choice;
}

const char* bfloat16_products() { return &pair_kernels() == &kWithPairs ? kPairs : kFloat32; }

void set_bfloat16_products(const char* name) {
    const Kernels* found = find(name);
    if (found == &kWithPairs && !has_pairs(kernels())) {
        throw std::runtime_error("the instruction set " + std::string(kernels().name) +
                                 " has no products of pairs; choose " + kWithPairs.name + " first");
    }
    chosen = found;
}
#else
const Kernels& pair_kernels() { return kernels(); }

const char* bfloat16_products() { return "float32"; }

void set_bfloat16_products(const char* name) {
    if (std::strcmp(name, "float32") == 0) return;
    throw std::runtime_error("bfloat16 products must be float32 on this CPU, but are " +
                             std::string(name));
}
#endif

}  // namespace pybeam
