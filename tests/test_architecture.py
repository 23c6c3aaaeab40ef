"""Rules of the house that a search through the source can check."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "pybeam").rglob("*.py"))
TRITON_KERNELS = sorted((ROOT / "triton_kernels").glob("*.py"))
OTHERS = sorted(p for name in ("tests", "benchmarks") for p in (ROOT / name).rglob("*.py"))
KERNELS = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".cpp", ".h", ".cu", ".cuh"})
# a module may import those to its right and itself
LAYERS = [
    "profile",
    "cli",
    "graph",
    "export",
    "compat",
    "decoder",
    "alternatives",
    "engine",
    "committed",
    "leaving",
    "alignment",
    "groups",
    "admission",
    "workspace",
    "graphs",
    "request_queue",
    "schedule",
    "draft_state",
    "beam_state",
    "targets",
    "search",
    "models",
    "beams",
    "token_tree",
    "stats",
    "ops",
    "transfer",
    "phases",
    "arguments",
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_search_loop_stands_once():
    callers = [name_of(p) for p in LIBRARY if re.search(r"session\.step\(", p.read_text("utf-8"))]
    assert callers == ["pybeam/engine.py"]


@pytest.mark.parametrize("path", sorted((ROOT / "pybeam" / "search").glob("*.py")), ids=name_of)
def test_algorithms_never_loop_or_call_the_model(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    assert ".step(" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_imports_point_one_way(path):
    layer = path.relative_to(ROOT / "pybeam").parts[0].removesuffix(".py")
    if layer not in LAYERS:
        return
    above = LAYERS[: LAYERS.index(layer)]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            assert parts[0] != "pybeam" or len(parts) < 2 or parts[1] not in above, name


@pytest.mark.parametrize("path", LIBRARY + TRITON_KERNELS + KERNELS + OTHERS, ids=name_of)
def test_files_stay_readable(path):
    text = path.read_text("utf-8")
    assert text.count("\n") < 400
    assert path.stem not in {"utils", "common", "misc", "helpers"}
    # a test may feed what the library must not contain
    assert path in OTHERS or not re.search(r"TODO|FIXME|-1e\d+|-65504", text)
    assert not re.search(r"^\s*(import|from) triton_kernels", text, re.M)


def test_torch_headers_stand_where_operators_are():
    users = [
        name_of(p) for p in KERNELS if re.search(r"#include <(torch|ATen|c10)/", p.read_text())
    ]
    registrations = {"csrc/cuda/registration.cpp", "csrc/registration.cpp"}
    assert registrations < set(users)
    assert all(name.startswith("csrc/ops/") for name in {*users} - registrations)
    includers = [
        p
        for p in KERNELS
        if re.search(r'#include "(\.\./)?ops/', p.read_text()) and p.suffix != ".h"
    ]
    assert {name_of(p) for p in includers} == registrations


def test_suffixes_of_kernels_mean_one_thing():
    """Code that is compiled once per instruction set, and nothing else, is in files `-inl.h`."""
    for path in KERNELS:
        included = re.findall(r'#include "([^"]*-inl\.h)"', path.read_text())
        assert not included or path.stem in {"generic", "avx2", "avx512", "avx512_bf16"}
        assert "-inl" not in path.name or path.parent.name == "cpu"


def test_weights_are_never_pickled():
    loaders = [
        p for p in LIBRARY if re.search(r"torch\.load\(|import pickle", p.read_text("utf-8"))
    ]
    assert not loaders
