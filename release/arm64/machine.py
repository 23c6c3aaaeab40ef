"""An ARM64 Python with torch and pybeam, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import setup
from release.arm64 import cuda

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "arm64"
SYSTEM = HOME / "system"
PYTHON = SYSTEM / "usr" / "bin" / "python3.11"
PACKAGES = HOME / "packages"
COMPILER = "aarch64-linux-gnu-g++"

DEBIAN = "deb http://deb.debian.org/debian bookworm main\n"
FROM_DEBIAN = ["python3.11", "libpython3.11-dev", "libstdc++6"]
PLATFORMS = ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"]
TORCH = "torch==2.13.0"
# what torch, pybeam and the tests of kernels and laws import; triton and CUDA are no part of that
FROM_PYPI = (
    "filelock typing-extensions sympy networkx jinja2 fsspec setuptools>=77 numpy safetensors "
    "huggingface-hub sentencepiece tokenizers tqdm click pyyaml "
    "transformers==5.24.0 llguidance "
    "pytest pytest-xdist pytest-random-order pytest-benchmark hypothesis"
).split()

# torch reads what Linux says about the CPU, which is an x86-64 here
CPU = """processor\t: {0}
Features\t: fp asimd atomics fphp asimdhp cpuid asimdrdm asimddp i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0

"""
KIND_OF_CPU = "sys/devices/system/cpu/cpu0/regs/identification/midr_el1"


def make() -> None:
    """Makes what is not there yet."""
    _once("system", "unpacking Debian's Python for ARM64", _unpack_system)
    _once("packages", f"installing {TORCH} and others for ARM64 (a gigabyte)", _install_packages)


def _once(name: str, what: str, do) -> None:
    stamp = HOME / f".stamp-{name}"
    if stamp.exists():
        return
    print(f"[arm64] {what}", flush=True)
    shutil.rmtree(HOME / name, ignore_errors=True)
    (HOME / name).mkdir(parents=True)
    do()
    stamp.touch()


def _unpack_system() -> None:
    """Lets apt find and load what the packages need, with lists and settings of its own."""
    apt = HOME / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "none"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(DEBIAN)
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Install-Recommends": "false",
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "none",
        "Dir::Etc::preferencesparts": apt / "none",
    }
    lines = (f'{name} "{value}";\n' for name, value in settings.items())
    (apt / "apt.conf").write_text("".join(lines))
    env = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    command = ["apt-get", "-qq", "-y", "--download-only", "install", *FROM_DEBIAN]
    subprocess.run(["apt-get", "-qq", "update"], env=env, check=True)
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, SYSTEM], check=True)
    _write(SYSTEM / "proc" / "cpuinfo", "".join(CPU.format(i) for i in range(2)))
    _write(SYSTEM / KIND_OF_CPU, "0x00000000410fd4f0\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _install_packages() -> None:
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    pip += ["--no-compile", "--target", PACKAGES, "--python-version", "3.11"]
    pip += ["--only-binary=:all:", *(f"--platform={name}" for name in PLATFORMS)]
    # its requirements are CUDA's libraries, gigabytes that no test of a CPU calls
    subprocess.run([*pip, "--no-deps", TORCH], check=True)
    subprocess.run([*pip, *FROM_PYPI], check=True)
    cuda.replace(PACKAGES / "torch" / "lib", SYSTEM)


def compile_kernels() -> None:
    """The package as it stands in the tree, with the extension for ARM64 in the place of this machine's."""
    package = HOME / "pybeam" / "pybeam"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.glob("*"):
        if link.is_symlink():
            link.unlink()
    for path in (ROOT / "pybeam").glob("*"):
        if not path.name.startswith(("_C.", "__pycache__")):
            (package / path.name).symlink_to(path.resolve())
    extension = package / "_C.abi3.so"
    csrc = [path for path in sorted((ROOT / "csrc").rglob("*.*")) if "cuda" not in path.parts]
    newest = max(path.stat().st_mtime for path in [*csrc, ROOT / "setup.py"])
    if extension.exists() and extension.stat().st_mtime > newest:
        return
    print("[arm64] compiling the C++ kernels (some minutes)", flush=True)
    objects = HOME / "objects"
    objects.mkdir(exist_ok=True)
    sources = [path for path in csrc if path.suffix == ".cpp"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda source: _compiled(source, objects), sources))
    link = [COMPILER, "-shared", *made, f"-L{PACKAGES / 'torch' / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run([*link, "-Wl,--allow-shlib-undefined", "-o", extension], check=True)


def _compiled(source: Path, folder: Path) -> Path:
    out = folder / ("-".join(source.relative_to(ROOT / "csrc").parts) + ".o")
    python = SYSTEM / "usr" / "include"
    headers = [PACKAGES / "torch" / "include", python / "python3.11", python]
    defined = {"TORCH_TARGET_VERSION": setup.OLDEST_TORCH, "Py_LIMITED_API": setup.OLDEST_PYTHON}
    command = ["ccache"] if shutil.which("ccache") else []
    command += [COMPILER, *setup.FLAGS, "-fwrapv", "-fPIC", "-DTORCH_EXTENSION_NAME=_C"]
    command += [f"-D{name}={value}" for name, value in defined.items()]
    command += [f"-isystem{folder}" for folder in headers]
    subprocess.run([*command, "-c", source, "-o", out], check=True)
    return out
