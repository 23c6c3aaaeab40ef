"""`setup.py` builds what this machine can build, and says what to do where it cannot."""

import importlib.util
import os
import re
import subprocess
from types import ModuleType

import pytest
from setuptools import Distribution

import pybeam
from support.paths import ROOT

PROGRAM = """
#include "cpu/parallel.h"

void pybeam::run_on_threads(int parts, void (*body)(int64_t, int64_t, void*), void* context) {
    for (int i = 0; i < parts; ++i) body(i, i + 1, context);
}

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


def build_of(setup_py):
    """The extension's description, and the command that builds it."""
    parts = setup_py.extension()
    return parts["ext_modules"][0], parts["cmdclass"]["build_ext"](Distribution())


def test_the_readme_of_a_package_index_leads_to_the_repository(setup_py, monkeypatch):
    monkeypatch.chdir(ROOT)
    links = re.findall(r"\]\(([^)]+)\)", setup_py.readme())
    assert links and all(re.match("https?://|#", link) for link in links)
    assert f"{setup_py.REPOSITORY}/blob/v{pybeam.__version__}/SECURITY.md" in links
    assert any("/raw/" in link and link.endswith(".svg") for link in links)


@pytest.mark.parametrize("has_lock", [True, False])
def test_one_build_runs_with_every_torch_and_python(setup_py, has_lock, monkeypatch):
    """But a Python without its lock has a build of its own."""
    monkeypatch.setattr(setup_py, "HAS_LIMITED_API", has_lock)
    module, _ = build_of(setup_py)
    assert module.py_limited_api == has_lock
    assert ("bdist_wheel" in setup_py.extension()["options"]) == has_lock
    assert ("TORCH_TARGET_VERSION", "0x020b000000000000") in module.define_macros  # 2.11
    assert "torch_python" not in module.libraries
    assert "-fopenmp" not in module.extra_compile_args["cxx"]


def test_a_compiler_may_be_a_command(setup_py, monkeypatch):
    command = ["env", *setup_py.compiler()]
    monkeypatch.setenv("CXX", " ".join(command))
    assert setup_py.compiler() == command


def test_each_task_runs_once(setup_py, tmp_path):
    source, program = tmp_path / "loops.cpp", tmp_path / "loops"
    source.write_text(PROGRAM)
    flags = ["-std=c++20", "-Wall", "-Werror", f"-I{ROOT / 'csrc'}"]
    command = [*setup_py.compiler(), *flags, str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    subprocess.run([program], check=True)


def test_an_older_build_is_not_imported(setup_py, monkeypatch, tmp_path):
    import torch.utils.cpp_extension as cpp

    monkeypatch.setattr(cpp.BuildExtension, "build_extensions", lambda self: None)
    _, command = build_of(setup_py)
    monkeypatch.chdir(tmp_path)
    stale = tmp_path / "pybeam" / "_C.cpython-311-x86_64-linux-gnu.so"
    stale.parent.mkdir()
    stale.touch()
    command.build_extensions()
    assert not stale.exists()


@pytest.mark.parametrize("has_cuda", [True, False])
def test_a_failed_build_names_the_reason_and_the_remedy(setup_py, has_cuda, monkeypatch, tmp_path):
    import torch.utils.cpp_extension as cpp

    def fails(self):
        raise RuntimeError("the detected CUDA version mismatches")

    monkeypatch.setattr(cpp.BuildExtension, "build_extensions", fails)
    monkeypatch.setattr(cpp, "CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setenv("PYBEAM_CUDA", "1" if has_cuda else "")
    _, command = build_of(setup_py)
    # a build removes older ones, and those of this checkout stay
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        command.build_extensions()
    message = str(caught.value)
    assert "could not be built: the detected CUDA version mismatches" in message
    assert ("unset PYBEAM_CUDA" in message) == has_cuda
    assert "PYBEAM_NO_EXTENSION=1" in message


def test_a_checkout_without_links(setup_py, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("pybeam", "triton_kernels"):
        (tmp_path / name).mkdir()
    (tmp_path / "triton_kernels" / "one.py").write_text("")
    link = tmp_path / "pybeam" / "triton_kernels"
    link.write_text("../triton_kernels")
    setup_py.follow_link()
    assert [path.name for path in link.iterdir()] == ["one.py"]
    setup_py.follow_link()


def test_windows_has_a_compiler_of_its_own(setup_py, monkeypatch):
    monkeypatch.setattr(setup_py, "IS_WINDOWS", True)
    monkeypatch.setattr(setup_py.shutil, "which", lambda name: name)
    # set first, so that the build's own setting is undone behind the test
    monkeypatch.setenv("CXX", "")
    monkeypatch.delenv("CXX")
    assert setup_py.compiler() == ["clang-cl"] == [os.environ["CXX"]]
    monkeypatch.setenv("CXX", r"C:\Program Files\LLVM\bin\clang-cl.exe")
    assert setup_py.compiler() == [os.environ["CXX"]]
    monkeypatch.setenv("CXX", "cl")
    with pytest.raises(SystemExit, match="CXX must name clang-cl, but is 'cl'; unset it"):
        setup_py.compiler()


def test_kernels_name_their_instructions_for_every_compiler():
    """Clang reads no `GCC target`, and needs a library for `__builtin_cpu_supports` on Windows."""
    paths = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")]
    texts = {path.name: path.read_text("utf-8") for path in paths}
    own = [
        name
        for name in texts
        if re.search(r"^#pragma GCC target|cpu_supports\(\"", texts[name], re.M)
    ]
    assert own == ["dispatch.cpp"]
    assert not [name for name in texts if "__builtin_cpu" in texts[name]]
    for name in texts:
        opened, closed = (
            len(re.findall(rf"^PYBEAM_{word}", texts[name], re.M)) for word in ("TARGET", "END")
        )
        assert opened == closed, name
