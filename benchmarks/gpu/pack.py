"""Pack what a run on a GPU would otherwise compile or lack, into one folder.

    python -m benchmarks.gpu.pack [--output build/gpu-pack] [--wheel FILE ...]        (or `make gpu-pack`)

It holds the extension with CUDA kernels for sm_90, the Triton kernels that the benchmarks launch, the lines
that they translate, and wheels of peers if there are any. `make gpu-test` and the other commands for a GPU
use what fits the checkout and the machine (`benchmarks.gpu.unpack`), and go on without the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
import zipfile
from pathlib import Path

from benchmarks.tools.data import ROOT, folder_with

PACK = ROOT / "build" / "gpu-pack"
MOST_BYTES = 60 * 1000**2
LINES = ("bible-es-en/dev.es", "bible-es-en/dev.en")
KEY, PACKAGES = "_C.key", "packages.tar.xz"


def extension_key() -> str:
    """A hash of all that the extension is compiled from."""
    digest = hashlib.sha256()
    for path in [ROOT / "setup.py", *sorted((ROOT / "csrc").rglob("*.*"))]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def pack_extension(folder: Path) -> str:
    from benchmarks.gpu.cross_build import NAME, build

    build(folder / NAME, ROOT / "build" / "gpu-objects")
    (folder / KEY).write_text(extension_key())
    return "extension with CUDA kernels"


def pack_triton(folder: Path) -> str:
    from benchmarks.gpu import needed_kernels, triton_cache

    num = triton_cache.pack(needed_kernels.all_launches(), folder)
    return f"{num} Triton kernels"


def pack_data(folder: Path) -> str:
    for path in LINES:
        target = folder / "data" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder_with(path) / path, target)
    return f"data: {', '.join(LINES)}"


def pack_wheels(folder: Path, wheels: list[Path]) -> str:
    """Wheels again, with a better compression: it saves a third, and what travels has a limit."""
    import tarfile

    with tarfile.open(folder / PACKAGES, "w:xz", preset=6) as tar:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(archive.namelist()):
                    # some wheels list their folders, too
                    if name.endswith("/"):
                        continue
                    info = tarfile.TarInfo(name)
                    info.size = archive.getinfo(name).file_size
                    with archive.open(name) as file:
                        tar.addfile(info, file)
    return f"packages: {', '.join(wheel.name for wheel in wheels)}"


def num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PACK, metavar="FOLDER")
    parser.add_argument(
        "--wheel",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="wheels of peers for the Python of that machine, such as CTranslate2's",
    )
    options = parser.parse_args()
    folder = options.output
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = [pack_data, pack_extension, pack_triton]
    if options.wheel:
        parts.append(lambda folder: pack_wheels(folder, options.wheel))
    failed = 0
    for part in parts:
        start = time.perf_counter()
        try:
            print(f"packed {part(folder)} in {time.perf_counter() - start:.0f} s", flush=True)
        # a run on a GPU goes on without any of them
        except Exception as error:
            failed += 1
            print(f"left out: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    size = num_bytes(folder)
    print(f"{folder}: {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        sys.exit(f"this is more than {MOST_BYTES / 1e6:.0f} MB; leave out a --wheel")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
