"""Builds csrc into the extension `pybeam._C`; everything else is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup

REMEDY = "install a C++ compiler (Debian: `apt install g++`) and run `make build`"


def compiler() -> list[str]:
    """The command of the C++ compiler that the build will call, such as `ccache g++`; empty: none."""
    commands = ((os.environ.get("CXX") or "c++").split(), ["g++"])
    return next((command for command in commands if shutil.which(command[0])), [])


def has_openmp(cxx: list[str]) -> bool:
    """Whether this compiler builds and links a program with OpenMP. Apple's clang does not."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "openmp.cpp")
        source.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
        command = [*cxx, "-fopenmp", str(source), "-o", str(source.with_suffix(""))]
        return subprocess.run(command, capture_output=True).returncode == 0


def reason_not_to_build() -> str | None:
    if os.environ.get("PYBEAM_NO_EXTENSION") == "1":
        return "PYBEAM_NO_EXTENSION=1 is set; unset it and run `make build`"
    if not compiler():
        return f"there is no C++ compiler ({os.environ.get('CXX') or 'c++'}, g++); {REMEDY}"
    try:
        import torch.utils.cpp_extension  # noqa: F401
    except ImportError:
        return "torch cannot be imported here; install it first, then `make build`"
    return None


def how_to_go_on(has_cuda: bool, cxx: list[str]) -> str:
    """What a user can do about a compilation that failed."""
    remedies = []
    if has_cuda:
        remedies.append(
            "the CUDA kernels need the CUDA toolkit of torch's own version: set PYBEAM_NO_CUDA=1 to "
            "build without them (Triton's kernels run on a GPU all the same)"
        )
    remedies += [
        f"the compiler is {' '.join(cxx)} and must know C++20: choose another, such as CXX=g++ "
        "(GCC 12 is tested)",
        "PYBEAM_NO_EXTENSION=1 installs pybeam without the extension; CPU decoding is slow then",
    ]
    return "\n".join(f"pybeam: - {remedy}" for remedy in remedies)


def extension() -> dict:
    import torch
    import torch.utils.cpp_extension as cpp

    has_cuda = torch.version.cuda and cpp.CUDA_HOME and os.environ.get("PYBEAM_NO_CUDA") != "1"
    if has_cuda and not torch.cuda.is_available():
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0a")
    files = sorted(p for p in Path("csrc").rglob("*.*") if has_cuda or "cuda" not in p.parts)
    # never -march=native: dispatch.cpp chooses the instruction set at run time
    # GCC 12 finds uninitialized variables in its own AVX-512 header
    flags = ["-O3", "-std=c++20", "-ffp-contract=off", "-Wall", "-Wno-uninitialized", "-g0"]
    cxx = compiler()
    openmp = ["-fopenmp"] if has_openmp(cxx) else []
    if not openmp:
        print(
            f"pybeam: {' '.join(cxx)} has no OpenMP; the kernels will use one thread",
            file=sys.stderr,
        )
    module = (cpp.CUDAExtension if has_cuda else cpp.CppExtension)(
        "pybeam._C",
        [str(p) for p in files if p.suffix in (".cpp", ".cu")],
        depends=[str(p) for p in files if p.suffix in (".h", ".cuh")],
        extra_compile_args={"cxx": [*flags, *openmp], "nvcc": ["-O3", "-std=c++20", "-lineinfo"]},
        extra_link_args=openmp,
    )

    class Build(cpp.BuildExtension):
        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            except Exception as error:
                # pip shows a traceback to its end, and this must not stand above it
                raise SystemExit(
                    f"\npybeam: the C++ extension could not be built: {error}\n"
                    f"pybeam: the compiler's messages stand above. What you can do:\n"
                    f"{how_to_go_on(bool(has_cuda), cxx)}\n"
                ) from None

    return {"ext_modules": [module], "cmdclass": {"build_ext": Build}}


def main() -> None:
    reason = reason_not_to_build()
    if reason is not None:
        print(
            f"\npybeam: the C++ extension will not be built, so CPU decoding will be slow.\n"
            f"pybeam: {reason}\n",
            file=sys.stderr,
        )
    setup(**(extension() if reason is None else {}))


if __name__ == "__main__":
    main()
