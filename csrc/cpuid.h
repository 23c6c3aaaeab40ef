// The instructions that an x86 processor has and its system lets programs use. Compilers have a
// function of their own, which needs a library of theirs on Windows and knows fewer names if old.
#pragma once

#include <cpuid.h>

#include <cstdint>
#include <cstring>

namespace pybeam {

enum class CpuRegister { kEax, kEbx, kEcx, kEdx };

struct CpuFeature {
    const char* name;
    unsigned leaf, part;
    CpuRegister in;
    int bit;
    uint64_t states;  // of registers that the system must keep
};

inline constexpr uint64_t kAvxStates = 0x6, kAvx512States = 0xe6, kTileStates = 0x60000;
inline constexpr CpuFeature kCpuFeatures[] = {
    {"fma", 1, 0, CpuRegister::kEcx, 12, kAvxStates},
    {"f16c", 1, 0, CpuRegister::kEcx, 29, kAvxStates},
    {"avx2", 7, 0, CpuRegister::kEbx, 5, kAvxStates},
    {"avxvnni", 7, 1, CpuRegister::kEax, 4, kAvxStates},
    {"avx512f", 7, 0, CpuRegister::kEbx, 16, kAvx512States},
    {"avx512dq", 7, 0, CpuRegister::kEbx, 17, kAvx512States},
    {"avx512bw", 7, 0, CpuRegister::kEbx, 30, kAvx512States},
    {"avx512vl", 7, 0, CpuRegister::kEbx, 31, kAvx512States},
    {"avx512vnni", 7, 0, CpuRegister::kEcx, 11, kAvx512States},
    {"avx512bf16", 7, 1, CpuRegister::kEax, 5, kAvx512States},
    {"amx-tile", 7, 0, CpuRegister::kEdx, 24, kTileStates},
    {"amx-int8", 7, 0, CpuRegister::kEdx, 25, kTileStates},
};

// The registers that the system keeps when it lets another program run; 0: it does not say.
inline uint64_t kept_states() {
    constexpr int kSays = 27;  // OSXSAVE
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx >> kSays & 1) == 0) return 0;
    asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return uint64_t{edx} << 32 | eax;
}

inline bool cpu_supports(const char* name) {
    for (const CpuFeature& feature : kCpuFeatures) {
        if (std::strcmp(feature.name, name) != 0) continue;
        unsigned found[4];
        return __get_cpuid_count(feature.leaf, feature.part, &found[0], &found[1], &found[2],
                                 &found[3]) &&
               (found[static_cast<int>(feature.in)] >> feature.bit & 1) != 0 &&
               (kept_states() & feature.states) == feature.states;
    }
    return false;
}

}  // namespace pybeam
