"""Run tests on ARM64 under emulation, where no such machine is at hand.

    python -m release.arm64 [--cpu NAME] [PYTEST ARGUMENT ...]

Makes `build/arm64` the first time: Debian's Python 3.11 and the packages of PyPI that the tests
need, both for ARM64 (1.5 GB). Then compiles csrc for ARM64 with the flags of setup.py, and starts
pytest in qemu's user mode. Without a path among the arguments, pytest takes
release/arm64/tests.txt. The emulator takes 10 to 50 times as long as a CPU, so times say nothing,
and it hardly shows a CPU's order of memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from release.arm64 import machine
from release.arm64.machine import HOME, PYTHON, ROOT

TOOLS = {
    "apt-get": "apt",
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}


def install_tools() -> None:
    missing = sorted({TOOLS[tool] for tool in TOOLS if not shutil.which(tool)})
    if not missing:
        return
    command = ["apt-get", "install", "-qq", "--no-install-recommends", "-y", *missing]
    if os.geteuid() != 0 or "apt" in missing:
        sys.exit(f"{' and '.join(missing)} must be installed; on Debian: sudo {' '.join(command)}")
    print(f"[arm64] installing {' '.join(missing)}", flush=True)
    subprocess.run(command, check=True)


def listed_tests() -> list[str]:
    lines = (ROOT / "release" / "arm64" / "tests.txt").read_text("utf-8").splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # "neoverse-n1" has products of bytes, and neither I8MM nor BF16
    parser.add_argument(
        "--cpu", default="max", help="which CPU qemu emulates; default: %(default)s"
    )
    options, arguments = parser.parse_known_args()
    install_tools()
    machine.make()
    machine.compile_kernels()
    # CUDA's kernel is compiled for the CPU by a compiler of this machine; qemu ends some copies of a
    # process that has threads, by an assertion of its own; ONNX Runtime is not installed there
    chosen = "not cuda_on_cpu and not processes and not onnx"
    tests = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-k", chosen, *arguments]
    if not any((ROOT / one.partition("::")[0]).exists() for one in arguments if one[:1] != "-"):
        tests += listed_tests()
    paths = [HOME / "pybeam", ROOT, ROOT / "tests", HOME / "packages"]
    env = {
        **os.environ,
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONSAFEPATH": "1",
        "PYBEAM_EXPECT_NATIVE": "1",
        # a set that is not found there fails, and is not skipped
        "PYBEAM_EXPECT_ISA": "neon,neon_dotprod,neon_bf16" if options.cpu == "max" else "neon",
    }
    command = ["qemu-aarch64", "-cpu", options.cpu, "-L", HOME / "system", PYTHON, "-m", "pytest"]
    return subprocess.run([*command, *tests], env=env, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
