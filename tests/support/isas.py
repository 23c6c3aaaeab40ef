"""The instruction sets that this kind of CPU has kernels for."""

import platform

if platform.machine() in ("aarch64", "arm64"):
    ALL = ("generic", "neon", "neon_dotprod", "neon_bf16")
    # those whose kernels for floats differ
    OF_FLOATS = ("generic", "neon", "neon_bf16")
else:
    ALL = ("generic", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8")
    OF_FLOATS = ("generic", "avx2", "avx512", "avx512_bf16")
