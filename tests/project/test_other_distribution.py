"""PyPI's other `pybeam`, which reads Erlang files, may have written to our folder before or after us."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

# as in its release 0.8.1, which needs the package `construct`
THEIR_INIT = "from pybeam.beam_file import BeamFile\n\n__all__ = ['BeamFile']\n"
REMEDY = "run `pip uninstall -y pybeam pybeam-search`, then `pip install pybeam-search`"
INSTALLED = "`pybeam`, a reader of Erlang files, 0.8.1 is installed"


@pytest.fixture
def site(tmp_path) -> Path:
    """A site-packages with our Python files."""
    leave_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "pybeam", tmp_path / "pybeam", ignore=leave_out)
    shutil.copy(ROOT / "pybeam_search.py", tmp_path)
    return tmp_path


def install_theirs(site: Path, *, needs: str | None = None, init: bool = True) -> None:
    import_of_needs = f"import {needs}\n" if needs else ""
    (site / "pybeam" / "beam_file.py").write_text(f"{import_of_needs}class BeamFile: ...\n")
    if init:
        (site / "pybeam" / "__init__.py").write_text(THEIR_INIT)
    metadata = site / "pybeam-0.8.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pybeam\nVersion: 0.8.1\n")


def uninstall_theirs(site: Path) -> None:
    for name in ("beam_file.py", "__init__.py"):
        (site / "pybeam" / name).unlink()
    shutil.rmtree(site / "pybeam-0.8.1.dist-info")


def python(site: Path, program: str) -> subprocess.CompletedProcess:
    # the checkout may be on the path, in several ways
    setup = (
        "import os, sys; sys.path[:] = [sys.argv[1]] + "
        "[p for p in sys.path if p and not os.path.exists(os.path.join(p, 'pybeam_search.py'))]; "
    )
    command = [sys.executable, "-c", setup + program, str(site)]
    return subprocess.run(command, capture_output=True, text=True, cwd=site.parent)


def command(site: Path) -> subprocess.CompletedProcess:
    run = "sys.argv[1:] = ['--version']; from pybeam_search import main; sys.exit(main())"
    return python(site, run)


def test_alone_nothing_is_said(site):
    assert python(site, "import pybeam").stderr == ""
    done = command(site)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pybeam ")


def test_ours_installed_after_theirs_works_and_warns(site):
    install_theirs(site, init=False)
    done = python(site, "import pybeam; print(pybeam.__version__)")
    assert done.returncode == 0 and done.stdout
    assert INSTALLED in done.stderr and REMEDY in done.stderr
    assert command(site).returncode == 0


@pytest.mark.parametrize("needs", [None, "a_package_that_is_not_here"])
def test_theirs_installed_after_ours(site, needs):
    install_theirs(site, needs=needs)
    done = command(site)
    assert (done.returncode, done.stdout) == (1, "")
    assert INSTALLED in done.stderr and REMEDY in done.stderr


def test_theirs_uninstalled_takes_our_file_with_it(site):
    install_theirs(site)
    uninstall_theirs(site)
    done = command(site)
    assert (done.returncode, done.stdout) == (1, "")
    assert "another distribution is in the way" in done.stderr and REMEDY in done.stderr
