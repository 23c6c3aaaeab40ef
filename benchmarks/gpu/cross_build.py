"""Build the extension with its CUDA kernels where torch knows no CUDA.

The extension uses torch's stable ABI and Python's limited API, so one build runs with torch 2.11 and later
and with any Python. Two libraries of torch that a CPU build lacks are stood in for while it is linked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tools.data import ROOT

ARCHITECTURES = "9.0"
ABSENT = ("torch_cuda", "c10_cuda")
NAME = "_C.abi3.so"
# where the toolkit is installed unless somebody chose another folder
DEFAULT = "/usr/local/cuda"


class CannotBuild(Exception):
    """The extension cannot be built here; the message says why."""


def build(target: Path, work: Path) -> None:
    """Write the extension to `target`; what it is made of stays in `work`, for the next time.

    Raises:
        CannotBuild: there is no toolkit, or its compiler failed.
    """
    home = toolkit()
    library = work / "lib"
    # a process of its own: torch is told that it has CUDA
    command = [sys.executable, "-m", __name__, str(home), str(work), str(library)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    log = work / "build.log"
    work.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        run = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=output, stderr=output
        )
    built = library / "pybeam" / NAME
    if run.returncode or not built.exists():
        raise CannotBuild(f"the compiler failed; {log} ends in:\n{log.read_text()[-1500:]}")
    shutil.copyfile(built, target)
    subprocess.run(["strip", str(target)], check=True)


def toolkit() -> Path:
    """The folder of CUDA's compiler and headers. Raises CannotBuild."""
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), DEFAULT, nvcc and Path(nvcc).parents[1]]
    homes = [Path(place) for place in places if place]
    for home in homes:
        if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime_api.h").exists():
            return home
    looked = ", ".join(map(str, homes))
    raise CannotBuild(f"there is no CUDA toolkit in {looked}; set CUDA_HOME to the folder of one")


def main() -> None:
    home, work, library = sys.argv[1:]
    import torch
    import torch.utils.cpp_extension as cpp

    command = [f"{home}/bin/nvcc", "--version"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    version = re.search(r"release (\d+\.\d+)", text)
    assert version is not None, text
    torch.version.cuda = version[1]
    cpp.CUDA_HOME = home
    with tempfile.TemporaryDirectory() as folder:
        for name in ABSENT:
            _stand_in(name, Path(folder))
        os.environ["LIBRARY_PATH"] = folder
        # they have no symbol, and must be named all the same
        os.environ["LDFLAGS"] = "-Wl,--no-as-needed"
        os.environ |= {"PYBEAM_CUDA": "1", "TORCH_CUDA_ARCH_LIST": ARCHITECTURES}
        import setup

        options = ["--build-lib", library, "--build-temp", f"{work}/objects"]
        sys.argv = ["setup.py", "build_ext", *options]
        setup.main()


def _stand_in(name: str, folder: Path) -> None:
    """Make a library of this name without anything in it."""
    file = f"lib{name}.so"
    command = ["c++", "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{file}"]
    subprocess.run([*command, "-o", str(folder / file)], check=True)


if __name__ == "__main__":
    main()
