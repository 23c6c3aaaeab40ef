"""After `pip install "pybeam-search[examples]"` README's first program runs: no clone, no network."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from release import wheel_test
from support.pages import blocks_of
from support.paths import ROOT

BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
SOURCES = ("pybeam", "triton_kernels", "packages/examples", "examples/models", "examples/speech")
FILES = ("LICENSE", "MANIFEST.in", "README.md", "pybeam_search.py", "pyproject.toml", "setup.py")


@pytest.fixture
def wheels(tmp_path) -> Path:
    """A folder with the wheels of this checkout, without the extension, which takes minutes to build."""
    clone, out = tmp_path / "clone", tmp_path / "wheels"
    leave_out = shutil.ignore_patterns(
        "*.so", "__pycache__", "spoken-verses-en", "*.egg-info", "build"
    )
    for name in SOURCES:
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=leave_out)
    for name in (*FILES, "examples/LICENSES.md"):
        shutil.copy(ROOT / name, clone / name)
    out.mkdir()
    env = {**os.environ, "PYBEAM_NO_EXTENSION": "1"}
    for folder in (clone, clone / "packages" / "examples"):
        command = [sys.executable, "-c", BUILD, str(out)]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return out


@pytest.fixture
def python(tmp_path) -> Path:
    """The Python of a new environment, which has the packages of this one, but not pybeam."""
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "pybeam" not in path.name:
            (site / path.name).symlink_to(path)
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.slow
def test_the_first_program_runs_where_nothing_but_pybeam_was_installed(wheels, python, tmp_path):
    install = (
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--find-links",
        wheels,
    )
    subprocess.run([sys.executable, *install, "pybeam-search[examples]"], check=True, env=offline())
    [first, *_] = [one for one in blocks_of(ROOT / "README.md") if one.language == "python"]
    assert first.code == wheel_test.first_program() and first.printed
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [python, "-W", "ignore", "-c", first.code],
        cwd=tmp_path / "empty",
        env=offline(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == first.printed, done.stderr


def offline() -> dict[str, str]:
    """An environment in which nothing of the clone is found, and whoever asks the network fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    nowhere = "http://127.0.0.1:9"
    return {**kept, "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "HF_ENDPOINT": nowhere}
