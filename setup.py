"""Builds csrc into the extension `pybeam._C`; everything else is in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup

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
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    sources = sorted(str(path) for path in Path("csrc").rglob("*.cpp"))
    headers = sorted(str(path) for path in Path("csrc").rglob("*.h"))
    # never -march=native: dispatch.cpp chooses the instruction set at run time
    # GCC 12 finds uninitialized variables in its own AVX-512 header
    flags = ["-O3", "-std=c++20", "-fopenmp", "-Wall", "-Wno-uninitialized", "-g0"]
    module = CppExtension(
        "pybeam._C",
        sources,
        depends=headers,
        extra_compile_args=flags,
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [module], "cmdclass": {"build_ext": BuildExtension}}


reason = reason_not_to_build()
if reason is not None:
    print(
        f"\npybeam: the C++ extension will not be built, so CPU decoding will be slow.\n"
        f"pybeam: {reason}\n",
        file=sys.stderr,
    )
setup(**(extension() if reason is None else {}))
