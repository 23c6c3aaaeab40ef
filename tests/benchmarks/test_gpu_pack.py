"""The pack for a machine with a GPU: what fits is used there, and what is stale is not."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO

import pytest

from support import aot, triton_launches
from support.paths import ROOT

triton = pytest.importorskip("triton", reason="the pack holds Triton kernels")


@pytest.fixture
def cache(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return pytest.importorskip("benchmarks.gpu.triton_cache")


@pytest.fixture
def unpack(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return pytest.importorskip("benchmarks.gpu.unpack")


def found(launches, folder) -> list[bool]:
    """Whether Triton finds these launches in a cache, and need not compile them."""
    hits = []
    with triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir = str(folder)
        triton.knobs.compilation.listener = lambda cache_hit, **_: hits.append(cache_hit)
        for launch in launches:
            # or else it remembers them
            launch.kernel.device_caches.clear()
            aot.compile_for(launch, 90)
            # what a pack holds has no PTX, which other tests read
            launch.kernel.device_caches.clear()
    return hits


@pytest.mark.slow
def test_kernels_are_found_where_they_are_unpacked(cache, tmp_path, monkeypatch):
    launch = triton_launches.backtrace_launch()
    aot.compile_for(launch, 90)
    assert cache.pack([launch], tmp_path) == 1, "also what this process has compiled before"
    # a library of Triton's that was built for another Python has another hash
    from triton.runtime.cache import triton_key

    other = triton_key() + "-another build"
    for module in ("triton.runtime.cache", "triton.compiler.compiler"):
        monkeypatch.setattr(f"{module}.triton_key", lambda: other, raising=False)
    assert cache.unpack(tmp_path, tmp_path / "cache") == 1
    assert found([launch], tmp_path / "cache") == [True]
    assert found([launch], tmp_path / "empty") == [False]
    # machine code alone would not do
    for path in (tmp_path / "cache").rglob("__grp__*"):
        path.unlink()
    assert found([launch], tmp_path / "cache") == [False]


@pytest.mark.slow
def test_the_pack_is_complete_and_small(cache, tmp_path):
    needed = pytest.importorskip("benchmarks.gpu.needed_kernels")
    launches = needed.all_launches()
    names = {launch.kernel.__name__ for launch in launches}
    assert {"select_kernel", "tree_attention_kernel", "commit_kernel", "add_norm_kernel"} <= names
    assert cache.pack(launches, tmp_path) == len(launches)
    assert (tmp_path / cache.FILE).stat().st_size < 10 * 1000**2
    cache.unpack(tmp_path, tmp_path / "cache")
    assert all(found(launches, tmp_path / "cache"))


def write_pack(folder, **changes) -> None:
    """A pack of one kernel that is none; `changes` are of its index."""
    kernel = {"name": "x", "files": ["k.json", "k.cubin"]}
    index = {"triton": triton.__version__, "python files": "", "kernels": [kernel], **changes}
    files = {"0/k.json": b"{}", "0/k.cubin": b"code", "index.json": json.dumps(index).encode()}
    with tarfile.open(folder / "triton.tar.xz", "w:xz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, BytesIO(content))


def test_stale_kernels_are_left_alone(cache, unpack, tmp_path, capsys):
    assert unpack.use_triton(tmp_path, tmp_path / "cache") == 0
    write_pack(tmp_path, **{"python files": cache.python_files()})
    assert unpack.use_triton(tmp_path, tmp_path / "cache") == 1
    capsys.readouterr()
    for changes, reason in (
        ({"triton": "3.5.1"}, "and 3.5.1 compiled the kernels"),
        ({"python files": "others"}, "are not those that compiled the kernels"),
    ):
        write_pack(tmp_path, **{"python files": cache.python_files()} | changes)
        assert unpack.use_triton(tmp_path, tmp_path / "other") == 0
        assert reason in capsys.readouterr().out
    (tmp_path / cache.FILE).write_bytes(b"no archive")
    assert unpack.use_triton(tmp_path, tmp_path / "other") == 0
    assert "is broken" in capsys.readouterr().out
    assert not (tmp_path / "other").exists()


def test_what_launchers_lack_is_said(unpack, monkeypatch, capsys):
    for problem, said in ((None, ""), ("there is no C compiler", "here: there is no C compiler\n")):
        monkeypatch.setattr("pybeam.backends.launchers.problem", lambda problem=problem: problem)
        unpack.say_what_launchers_need()
        assert capsys.readouterr().out.endswith(said)


def test_an_extension_of_other_sources_is_left_alone(unpack, tmp_path, capsys):
    target = tmp_path / "pybeam.so"
    target.write_bytes(b"mine")
    assert not unpack.use_extension(tmp_path, target)
    (tmp_path / "_C.abi3.so").write_bytes(b"theirs")
    (tmp_path / unpack.KEY).write_text("of other sources")
    assert not unpack.use_extension(tmp_path, target)
    assert "stale" in capsys.readouterr().out and target.read_bytes() == b"mine"


@pytest.mark.parametrize("status", [0, 1])
def test_an_extension_stays_only_if_it_can_be_loaded(unpack, tmp_path, monkeypatch, status):
    target = tmp_path / "pybeam.so"
    target.write_bytes(b"mine")
    (tmp_path / "_C.abi3.so").write_bytes(b"theirs")
    (tmp_path / unpack.KEY).write_text(unpack.extension_key())
    monkeypatch.setattr(unpack, "PROBE", f"exit({status})")
    assert unpack.use_extension(tmp_path, target) == (status == 0)
    assert target.read_bytes() == (b"mine" if status else b"theirs")


def test_a_key_follows_the_sources(unpack, tmp_path, monkeypatch):
    pack = pytest.importorskip("benchmarks.gpu.pack")
    monkeypatch.setattr(pack, "ROOT", tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "setup.py").write_text("")
    source = tmp_path / "csrc" / "select.cu"
    keys = set()
    for text in ("a", "b", "a"):
        source.write_text(text)
        keys.add(pack.extension_key())
    assert len(keys) == 2


def test_a_toolkit_has_a_compiler_and_headers(unpack, tmp_path, monkeypatch):
    """A script named nvcc may stand on the PATH, far from the headers."""
    cross_build = pytest.importorskip("benchmarks.gpu.cross_build")
    for name in ("bin/nvcc", "include/cuda_runtime_api.h"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cross_build.toolkit() == tmp_path
    (tmp_path / "include/cuda_runtime_api.h").unlink()
    monkeypatch.setattr(cross_build.shutil, "which", lambda name: None)
    monkeypatch.setattr(cross_build, "DEFAULT", str(tmp_path / "none"))
    with pytest.raises(cross_build.CannotBuild, match="set CUDA_HOME"):
        cross_build.toolkit()


def test_packages_are_unpacked(unpack, tmp_path):
    import zipfile

    pack = pytest.importorskip("benchmarks.gpu.pack")
    wheel = tmp_path / "peer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("peer/", "")
        archive.writestr("peer/__init__.py", "fast = False\n")
    assert "peer-1.0" in pack.pack_wheels(tmp_path, [wheel])
    unpack.use_packages(tmp_path, tmp_path / "packages")
    assert (tmp_path / "packages/peer/__init__.py").read_text() == "fast = False\n"


@pytest.mark.slow
def test_the_calls_of_the_benchmarks_launch_on_tensors_without_memory(cache):
    needed = pytest.importorskip("benchmarks.gpu.needed_kernels")
    launches: list = []
    with aot.recording(launches.append), needed.torch.inference_mode():
        needed.of_benchmarks(is_tiny=True)
    names = {launch.kernel.__name__ for launch in launches}
    assert {
        "select_kernel",
        "tree_attention_kernel",
        "add_norm_kernel",
        "backtrace_kernel",
    } <= names
