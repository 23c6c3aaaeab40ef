#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#ifdef __x86_64__
#include "cpuid.h"
#endif
#ifdef PYBEAM_HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef PYBEAM_HAS_NEON_EXTENSIONS
#include <asm/hwcap.h>
#include <sys/auxv.h>
// headers of an older kernel lack these
#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1ul << 13)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1ul << 14)
#endif
#endif

namespace pybeam {
namespace {

#ifdef PYBEAM_HAS_TILES
// Whether this CPU has tiles and the kernel lets this process use them. It grants them for good,
// and signal handlers then need larger stacks of their own.
bool has_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
    return cpu_supports("amx-tile") && cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool is_supported(const Kernels& kernels) {
    if (&kernels == &kGenericKernels) return true;
#ifdef __x86_64__
    const bool has_avx2 = cpu_supports("avx2") && cpu_supports("fma") && cpu_supports("f16c");
    if (&kernels == &kAvx2Kernels) return has_avx2;
    if (&kernels == &kAvxVnniKernels) return has_avx2 && cpu_supports("avxvnni");
    const bool has_avx512 = has_avx2 && cpu_supports("avx512f") && cpu_supports("avx512dq") &&
                            cpu_supports("avx512bw") && cpu_supports("avx512vl");
    if (&kernels == &kAvx512Kernels) return has_avx512;
    const bool has_vnni = has_avx512 && cpu_supports("avx512vnni");
    if (&kernels == &kAvx512VnniKernels) return has_vnni;
    const bool has_bf16 = has_vnni && cpu_supports("avx512bf16");
#ifdef PYBEAM_HAS_TILES
    if (&kernels == &kAmxInt8Kernels) return has_bf16 && has_tiles();
#endif
    return has_bf16;
#else
#ifdef __aarch64__
    if (&kernels == &kNeonKernels) return true;
#endif
#ifdef PYBEAM_HAS_NEON_EXTENSIONS
    const bool has_dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    if (&kernels == &kNeonDotprodKernels) return has_dotprod;
    constexpr unsigned long kBoth = HWCAP2_I8MM | HWCAP2_BF16;
    return has_dotprod && (getauxval(AT_HWCAP2) & kBoth) == kBoth;
#endif
    return false;
#endif
}

// Best first.
constexpr const Kernels* kAllKernels[] = {
#ifdef PYBEAM_HAS_TILES
    &kAmxInt8Kernels,
#endif
#ifdef __x86_64__
    &kAvx512Bf16Kernels, &kAvx512VnniKernels,  &kAvx512Kernels, &kAvxVnniKernels, &kAvx2Kernels,
#endif
#ifdef PYBEAM_HAS_NEON_EXTENSIONS
    &kNeonBf16Kernels,   &kNeonDotprodKernels,
#endif
#ifdef __aarch64__
    &kNeonKernels,
#endif
    &kGenericKernels,
};

const Kernels* best_kernels() {
    for (const Kernels* kernels : kAllKernels) {
        if (is_supported(*kernels)) return kernels;
    }
    return &kGenericKernels;
}

const Kernels* find_kernels(const char* name) {
    for (const Kernels* kernels : kAllKernels) {
        if (std::strcmp(kernels->name, name) != 0) continue;
        if (is_supported(*kernels)) return kernels;
        throw std::runtime_error("this CPU has no " + std::string(name) + "; it can run " +
                                 best_kernels()->name);
    }
    std::string names;
    for (const Kernels* kernels : kAllKernels) {
        const char* join = names.empty() ? "" : kernels == kAllKernels[1] ? " or " : ", ";
        names = names.empty() ? kernels->name : std::string(kernels->name) + join + names;
    }
    throw std::runtime_error("the instruction set must be " + names + ", but is " + name);
}

std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> kernels = [] {
        const char* name = std::getenv("PYBEAM_ISA");
        return name != nullptr && *name != '\0' ? find_kernels(name) : best_kernels();
    }();
    return kernels;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

void set_isa(const char* name) { chosen() = find_kernels(name); }

}  // namespace pybeam
