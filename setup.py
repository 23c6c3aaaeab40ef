"""Builds csrc into the extension `pybeam._C`; everything else is in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup

REMEDY = "install a C++ compiler (Debian: `apt install g++`) and run `make build`"


def reason_not_to_build() -> str | None:
    if os.environ.get("PYBEAM_NO_EXTENSION") == "1":
        return "PYBEAM_NO_EXTENSION=1 is set; unset it and run `make build`"
    compiler = (os.environ.get("CXX") or "c++").split()[0]
    if shutil.which(compiler) is None and shutil.which("g++") is None:
        return f"there is no C++ compiler ({compiler}, g++); {REMEDY}"
    try:
        import torch.utils.cpp_extension  # noqa: F401
    except ImportError:
        return "torch cannot be imported here; install it first, then `make build`"
    return None


def extension() -> dict:
    import torch
    import torch.utils.cpp_extension as cpp

    has_cuda = torch.version.cuda and cpp.CUDA_HOME and os.environ.get("PYBEAM_NO_CUDA") != "1"
    if has_cuda and not torch.cuda.is_available():
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0a")
    files = sorted(p for p in Path("csrc").rglob("*.*") if has_cuda or "cuda" not in p.parts)
    # never -march=native: dispatch.cpp chooses the instruction set at run time
    # GCC 12 finds uninitialized variables in its own AVX-512 header
    flags = ["-O3", "-std=c++20", "-fopenmp", "-Wall", "-Wno-uninitialized", "-g0"]
    module = (cpp.CUDAExtension if has_cuda else cpp.CppExtension)(
        "pybeam._C",
        [str(p) for p in files if p.suffix in (".cpp", ".cu")],
        depends=[str(p) for p in files if p.suffix in (".h", ".cuh")],
        extra_compile_args={"cxx": flags, "nvcc": ["-O3", "-std=c++20", "-lineinfo"]},
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [module], "cmdclass": {"build_ext": cpp.BuildExtension}}


reason = reason_not_to_build()
if reason is not None:
    print(
        f"\npybeam: the C++ extension will not be built, so CPU decoding will be slow.\n"
        f"pybeam: {reason}\n",
        file=sys.stderr,
    )
setup(
    # the name `triton_kernels` belongs to another distribution
    packages=sorted({*find_packages(include=["pybeam", "pybeam.*"]), "pybeam.triton_kernels"}),
    package_dir={"pybeam.triton_kernels": "triton_kernels"},
    package_data={"pybeam": ["py.typed"]},
    **(extension() if reason is None else {}),
)
