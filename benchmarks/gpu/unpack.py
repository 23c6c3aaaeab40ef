"""Use what fits of a pack (`benchmarks.gpu.pack`); say what does not, and why.

    python -m benchmarks.gpu.unpack [FOLDER]

Triton's kernels go to build/triton-cache, packages to build/gpu-packages, the extension into `pybeam`. The
exit status is 0 if the extension is in place, and 1 if it must be compiled.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks.gpu.pack import KEY, PACK, PACKAGES, extension_key
from benchmarks.tools.data import ROOT

TRITON_CACHE = ROOT / "build" / "triton-cache"
PACKAGES_FOLDER = ROOT / "build" / "gpu-packages"
EXTENSION = ROOT / "pybeam" / "_C.abi3.so"
# that it is loaded, and has the CUDA kernels
PROBE = """import torch, pybeam._C
has_cuda = torch._C._dispatch_has_kernel_for_dispatch_key("pybeam::select", "CUDA")
exit(None if has_cuda else "it has no CUDA kernels")
"""


def use_extension(folder: Path, target: Path = EXTENSION) -> bool:
    """Copy the extension into the checkout if it was compiled from its sources, and can be loaded."""
    built, key = folder / "_C.abi3.so", folder / KEY
    if not built.exists() or not key.exists():
        print("the pack has no extension")
        return False
    if key.read_text() != extension_key():
        print("the extension of the pack is stale: csrc or setup.py is another")
        return False
    before = target.read_bytes() if target.exists() else None
    # a copy under another name first: the old one may be in use
    copy = target.with_name(f".{target.name}")
    shutil.copyfile(built, copy)
    copy.replace(target)
    run = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True)
    if run.returncode == 0:
        print("the extension of the pack is in place")
        return True
    print(f"the extension of the pack cannot be loaded here: {run.stderr.strip()[-300:]}")
    if before is None:
        target.unlink()
    else:
        target.write_bytes(before)
    return False


def use_triton(folder: Path, cache: Path = TRITON_CACHE) -> int:
    """Fill Triton's cache. Returns how many kernels it got."""
    from benchmarks.gpu import triton_cache

    if not (folder / triton_cache.FILE).exists():
        print("the pack has no Triton kernels")
        return 0
    try:
        num = triton_cache.unpack(folder, cache)
    except (triton_cache.Stale, ImportError) as error:
        print(f"the Triton kernels of the pack are not used: {error}")
        return 0
    print(f"{num} Triton kernels of the pack are in {cache}")
    return num


def use_packages(folder: Path, target: Path = PACKAGES_FOLDER) -> None:
    if (folder / PACKAGES).exists():
        with tarfile.open(folder / PACKAGES) as tar:
            tar.extractall(target, filter="data")
        print(f"packages of the pack are in {target}")


def say_what_launchers_need() -> None:
    """A pack has no launchers of Triton's kernels: they are compiled for one version of Python."""
    from pybeam.backends import launchers

    problem = launchers.problem()
    if problem is not None:
        print(f"no kernel of Triton can be launched here: {problem}")


def main() -> None:
    say_what_launchers_need()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PACK
    if not folder.is_dir():
        print(f"there is no pack in {folder}; everything is compiled here")
        sys.exit(1)
    has_extension = use_extension(folder)
    for part in (use_triton, use_packages):
        try:
            part(folder)
        # everything works without a pack
        except Exception as error:
            print(f"{part.__name__}: {type(error).__name__}: {error}")
    sys.exit(not has_extension)


if __name__ == "__main__":
    main()
