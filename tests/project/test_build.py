"""`setup.py` builds what this machine can build, and says what to do where it cannot."""

import importlib.util
import subprocess
from types import ModuleType

import pytest
import torch
from setuptools import Distribution

from support.paths import ROOT

PROGRAM = """
#include "cpu/parallel.h"

int main() {
    int done[100] = {};
    pybeam::parallel_for(4, 100, [&](int64_t task) { ++done[task]; });
    for (int count : done) {
        if (count != 1) return 1;
    }
    return 0;
}
"""


@pytest.fixture
def setup_py(monkeypatch) -> ModuleType:
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("setup_py", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.compiler():
        pytest.skip("there is no C++ compiler")
    return module


@pytest.fixture
def refusing(tmp_path, monkeypatch, setup_py) -> str:
    """A compiler that does not know -fopenmp, as Apple's clang."""
    path = tmp_path / "clang++"
    path.write_text(
        '#!/bin/sh\ncase " $* " in *" -fopenmp "*) echo "unsupported option" >&2; exit 1;; esac\n'
        f'exec {" ".join(setup_py.compiler())} "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return str(path)


def build_of(setup_py):
    """The extension's description, and the command that builds it."""
    parts = setup_py.extension()
    return parts["ext_modules"][0], parts["cmdclass"]["build_ext"](Distribution())


def test_openmp_is_used_where_the_compiler_has_it(setup_py):
    module, _ = build_of(setup_py)
    has_openmp = setup_py.has_openmp(setup_py.compiler())
    assert ("-fopenmp" in module.extra_compile_args["cxx"]) == has_openmp
    assert module.extra_link_args == (["-fopenmp"] if has_openmp else [])


def test_a_compiler_may_be_a_command(setup_py, monkeypatch):
    command = ["env", *setup_py.compiler()]
    expected = setup_py.has_openmp(setup_py.compiler())
    monkeypatch.setenv("CXX", " ".join(command))
    assert setup_py.compiler() == command
    assert setup_py.has_openmp(command) == expected


def test_without_openmp_one_thread_is_built(setup_py, refusing, capsys):
    assert setup_py.compiler() == [refusing]
    module, _ = build_of(setup_py)
    assert "-fopenmp" not in module.extra_compile_args["cxx"] + module.extra_link_args
    assert f"{refusing} has no OpenMP; the kernels will use one thread" in capsys.readouterr().err


def test_loops_run_without_openmp(setup_py, refusing, tmp_path):
    source, program = tmp_path / "loops.cpp", tmp_path / "loops"
    source.write_text(PROGRAM)
    flags = ["-std=c++20", "-Wall", "-Werror", f"-I{ROOT / 'csrc'}"]
    subprocess.run([refusing, *flags, str(source), "-o", str(program)], check=True)
    subprocess.run([program], check=True)


@pytest.mark.parametrize("has_cuda", [True, False])
def test_a_failed_build_names_the_reason_and_the_remedy(setup_py, has_cuda, monkeypatch):
    import torch.utils.cpp_extension as cpp

    def fails(self):
        raise RuntimeError("the detected CUDA version mismatches")

    monkeypatch.setattr(cpp.BuildExtension, "build_extensions", fails)
    monkeypatch.setattr(cpp, "CUDA_HOME", "/usr/local/cuda" if has_cuda else None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(setup_py, "has_openmp", lambda cxx: True)
    _, command = build_of(setup_py)
    with pytest.raises(SystemExit) as caught:
        command.build_extensions()
    message = str(caught.value)
    assert "could not be built: the detected CUDA version mismatches" in message
    assert ("PYBEAM_NO_CUDA=1" in message) == has_cuda
    assert "PYBEAM_NO_EXTENSION=1" in message
