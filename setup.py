"""Builds csrc into the extension `pybeam._C`; everything else is in pyproject.toml."""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path, PureWindowsPath

from setuptools import setup

# One build runs with these versions and all newer ones: LibTorch's stable ABI, Python's limited API.
OLDEST_TORCH = "0x020b000000000000"
OLDEST_PYTHON = "0x030b0000"
# `make sanitize` builds twice, each time into a folder of its own.
SANITIZERS = {
    "address": [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-D_GLIBCXX_ASSERTIONS",
    ],
    "thread": ["-fsanitize=thread"],
}
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
# a struct names the fields that are not zero; GCC 12 finds uninitialised variables in its own headers
EXCEPT = ["-Wno-missing-field-initializers", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
REPOSITORY = "https://github.com/pybeam-search/pybeam"
REMEDY = "install a C++ compiler (Debian: `apt install g++`) and run `make build`"
IS_WINDOWS = sys.platform == "win32"
# never -march=native: dispatch.cpp chooses the instruction set at run time
# GCC 12 finds uninitialized variables in its own AVX-512 header
FLAGS = ["-O3", "-std=c++20", "-ffp-contract=off", "-Wall", "-Wno-uninitialized", "-g0"]
# clang-cl, since Microsoft's own compiler has no instruction set for a part of a program
FLAGS_ON_WINDOWS = ["/O2", "/std:c++20", "/EHsc", "/clang:-ffp-contract=off", "/W3"]
# the limited API is that of a Python with its lock; one without is built for alone
HAS_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")


def compiler() -> list[str]:
    """The command of the C++ compiler that the build will call, such as `ccache g++`; empty: none."""
    commands = ((os.environ.get("CXX") or "c++").split(), ["g++"])
    if IS_WINDOWS:
        # torch calls what CXX names, and Microsoft's own compiler otherwise
        os.environ["CXX"] = cxx = os.environ.get("CXX") or "clang-cl"
        if PureWindowsPath(cxx).stem.lower() != "clang-cl":
            raise SystemExit(
                f"pybeam: on Windows, CXX must name clang-cl, but is {cxx!r}; unset it"
            )
        commands = ([cxx],)
    return next((command for command in commands if shutil.which(command[0])), [])


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
            "the CUDA kernels need a CUDA build of torch and a toolkit of its version: unset PYBEAM_CUDA to "
            "build without them (Triton's kernels run on a GPU all the same)"
        )
    remedies += [
        f"the compiler is {' '.join(cxx)} and must know C++20: choose another, such as CXX=g++ "
        "(GCC 12 is tested)",
        "PYBEAM_NO_EXTENSION=1 installs pybeam without the extension; CPU decoding is slow then",
    ]
    return "\n".join(f"pybeam: - {remedy}" for remedy in remedies)


def headers_of_torch() -> list[str]:
    """Where they are, for a compiler that says nothing about them."""
    import torch.utils.cpp_extension as cpp

    return [f"-isystem{path}" for path in cpp.include_paths()]


def tidy_flags() -> list[str]:
    """How clang-tidy reads csrc."""
    python = f"-isystem{sysconfig.get_paths()['include']}"
    return ["-std=c++20", f"-DTORCH_TARGET_VERSION={OLDEST_TORCH}", python, *headers_of_torch()]


def sanitizer_flags(name: str) -> list[str]:
    """How the compiler instruments the extension, and which warnings are errors then."""
    if name not in SANITIZERS:
        raise SystemExit(
            f"PYBEAM_SANITIZE={name} is none of {', '.join(SANITIZERS)}; make sanitize"
        )
    flags = ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZERS[name]]
    return [*flags, *WARNINGS, *EXCEPT, *headers_of_torch()]


def extension() -> dict:
    import torch
    import torch.utils.cpp_extension as cpp

    # a toolkit of another version than torch's may lie about, so nobody gets CUDA without asking
    has_cuda = os.environ.get("PYBEAM_CUDA") == "1"
    if has_cuda and not torch.cuda.is_available():
        # what runs on an A100 and an H100, and what the driver compiles for GPUs that came later
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0+PTX;9.0a")
    files = sorted(p for p in Path("csrc").rglob("*.*") if has_cuda or "cuda" not in p.parts)
    flags = list(FLAGS_ON_WINDOWS if IS_WINDOWS else FLAGS)
    link_flags = []
    if sanitizer := os.environ.get("PYBEAM_SANITIZE"):
        flags += sanitizer_flags(sanitizer)
        link_flags = SANITIZERS[sanitizer][:1]
    cpp.min_supported_cpython = OLDEST_PYTHON
    module = (cpp.CUDAExtension if has_cuda else cpp.CppExtension)(
        "pybeam._C",
        [str(p) for p in files if p.suffix in (".cpp", ".cu")],
        depends=[str(p) for p in files if p.suffix in (".h", ".cuh")],
        define_macros=[("TORCH_TARGET_VERSION", OLDEST_TORCH), *([("USE_CUDA", None)] * has_cuda)],
        extra_compile_args={"cxx": flags, "nvcc": ["-O3", "-std=c++20", "-lineinfo"]},
        extra_link_args=link_flags,
        py_limited_api=True,
    )
    # only now, as torch links an extension without it to more of itself
    module.py_limited_api = HAS_LIMITED_API

    class Build(cpp.BuildExtension):
        def build_extensions(self) -> None:
            for stale in Path("pybeam").glob("_C.cpython-*"):
                stale.unlink()  # built for one version of Python, it would be imported first
            try:
                super().build_extensions()
            except Exception as error:
                # pip shows a traceback to its end, and this must not stand above it
                raise SystemExit(
                    f"\npybeam: the C++ extension could not be built: {error}\n"
                    f"pybeam: the compiler's messages stand above. What you can do:\n"
                    f"{how_to_go_on(bool(has_cuda), compiler())}\n"
                ) from None

    return {
        "ext_modules": [module],
        "cmdclass": {"build_ext": Build},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_LIMITED_API else {},
    }


def follow_link() -> None:
    """Put a copy in the place of the tracked link where a checkout has a file with the link's target."""
    link = Path("pybeam/triton_kernels")
    if link.is_file():
        link.unlink()
        shutil.copytree("triton_kernels", link)


def readme() -> str:
    """The README with links to the repository, since a package index has none of its files."""
    [version] = re.findall('__version__ = "(.+)"', Path("pybeam/__init__.py").read_text("utf-8"))

    def there(link: re.Match[str]) -> str:
        kind = "raw" if link[1].endswith(".svg") else "blob"
        return f"]({REPOSITORY}/{kind}/v{version}/{link[1]})"

    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", there, Path("README.md").read_text("utf-8"))


def main() -> None:
    follow_link()
    reason = reason_not_to_build()
    if reason is not None:
        print(
            f"\npybeam: the C++ extension will not be built, so CPU decoding will be slow.\n"
            f"pybeam: {reason}\n",
            file=sys.stderr,
        )
    setup(
        long_description=readme(),
        long_description_content_type="text/markdown",
        **(extension() if reason is None else {}),
    )


if __name__ == "__main__":
    main()
