"""What `pip install -e .` and `python -m build` make of the tree."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

NEEDED = ("LICENSE", "MANIFEST.in", "README.md", "pybeam_search.py", "pyproject.toml", "setup.py")


@pytest.fixture
def clone(tmp_path) -> Path:
    """The files that a build reads, in a folder whose name is that of the package."""
    path = tmp_path / "pybeam"
    leave_out = shutil.ignore_patterns("*.so", "__pycache__")
    for folder in ("pybeam", "triton_kernels", "csrc"):
        shutil.copytree(ROOT / folder, path / folder, symlinks=True, ignore=leave_out)
    for name in NEEDED:
        shutil.copy(ROOT / name, path)
    (path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "LICENSES.md", path / "examples")
    return path


def build(clone: Path, kind: str, monkeypatch) -> Path:
    """Build as a machine without a compiler does."""
    monkeypatch.setenv("PYBEAM_NO_EXTENSION", "1")
    program = f"import sys; from setuptools.build_meta import {kind} as build; build(sys.argv[1])"
    out = clone.parent / "out"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", program, str(out)], cwd=clone, check=True, capture_output=True
    )
    [made] = out.iterdir()
    return made


def test_a_clone_is_imported_from_every_folder(clone, monkeypatch):
    """A path in a .pth file. A finder loses against the folder `pybeam/`, which is the clone itself."""
    site = clone.parent / "site"
    zipfile.ZipFile(build(clone, "build_editable", monkeypatch)).extractall(site)
    program = (
        "import site, sys; site.addsitedir(sys.argv[1]); "
        "import pybeam; from importlib.util import find_spec; "
        "print(pybeam.__file__, find_spec('pybeam.triton_kernels').origin)"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for folder in (clone.parent, clone, site, Path("/")):
        command = [sys.executable, "-S", "-c", program, str(site)]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        package = clone / "pybeam"
        expected = f"{package / '__init__.py'} {package / 'triton_kernels' / '__init__.py'}"
        assert done.stdout.strip() == expected, folder


def test_a_source_distribution_has_the_kernels_without_a_compiler(clone, monkeypatch):
    with tarfile.open(build(clone, "build_sdist", monkeypatch)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(clone).as_posix() for path in (clone / "csrc").rglob("*.*")}
    assert len(sources) > 50
    assert sources | {*NEEDED, "examples/LICENSES.md"} <= names
