"""AMX's product of int8 rows. No CPU with AMX has run it: here plain C++ plays the tiles."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pybeam.backends.packing import PANEL, Quantised, pack
from support.paths import ROOT

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

SOURCE = Path(__file__).parent / "amx_on_cpu" / "multiply.cpp"
TILE = 16  # rows, columns, groups of four along the depth
# what follows the sums, and rows that fill no tile, are done by vectors
with_vectors = pytest.mark.parametrize("isa", ["avx512_vnni"], indirect=True)


def has_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_int8" in cpuinfo.read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    path = tmp_path_factory.mktemp("amx_on_cpu") / "multiply.so"
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-w", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(path)], check=True)
    loaded = ctypes.CDLL(str(path))
    loaded.multiply.restype = ctypes.c_int64
    return loaded


def multiply(library, x: Tensor, q: Tensor, y: Tensor, adds: bool, first: int, last: int) -> int:
    """y = x q^T, or y += x q^T, in the rows `first .. last`. Return the number of products of tiles."""
    depth = x.shape[1]
    padded = torch.nn.functional.pad(x, (0, -depth % 4)).contiguous()
    offset = -128 * x.sum(1, dtype=torch.int32)
    weight = pack(Quantised(q, torch.ones(len(q))))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (padded, offset, weight, y)]
    sizes = [ctypes.c_int64(n) for n in (depth, q.shape[0], first, last)]
    return library.multiply(*pointers, ctypes.c_bool(adds), *sizes)


def randoms(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.thinned()
@with_vectors
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("num_columns", "depth"), [(64, 64), (70, 130), (1, 256), (200, 63), (129, 321)]
)
@pytest.mark.parametrize("rows", [(0, 1), (0, 15), (0, 16), (3, 20), (5, 37), (0, 64), (1, 80)])
def test_sums_are_exact(isa, library, rows, num_columns, depth, adds):
    first, last = rows
    x, q = randoms(last, depth), randoms(num_columns, depth)
    y = torch.randint(-99, 99, (last + 1, num_columns)).float()
    expected = y.clone()
    if not adds:
        expected[first:last] = 0.0
    expected[first:last] += (x[first:].int() @ q.int().t()).float()
    products = multiply(library, x, q, y, adds, first, last)
    assert torch.equal(y, expected)
    tiles = math.ceil((last - first) / TILE) if last - first >= TILE else 0
    columns = math.ceil(num_columns / PANEL) * PANEL // TILE
    assert products == tiles * columns * (math.ceil(depth / 4) // TILE)


@pytest.mark.thinned(most=2)
@with_vectors
@pytest.mark.parametrize("weight", [-128, -127, 127])
@pytest.mark.parametrize("value", [-128, 127])
def test_extremes_do_not_saturate(isa, library, value, weight):
    depth = 1100
    x, q = (torch.full((20, depth), number, dtype=torch.int8) for number in (value, weight))
    y = torch.empty(20, 20)
    assert multiply(library, x, q, y, False, 0, 20) > 0
    assert (y == float(value * weight * depth)).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86-64's")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump")
def test_no_other_function_of_the_extension_has_tiles():
    """Tiles are released where they are configured."""
    extension = importlib.util.find_spec("pybeam._C").origin
    command = ["objdump", "-d", "--no-show-raw-insn", extension]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = [f for f in code.split("\n\n") if re.search(r"\t(tdp|tile|[ls][dt]tilecfg)", f)]
    [function] = functions
    assert "multiply_rows_in_tiles" in function.splitlines()[0]
    for instruction in ("ldtilecfg", "tdpbsud", "tilerelease"):
        assert f"\t{instruction}" in function


@pytest.mark.skipif(has_amx(), reason="this CPU has AMX")
def test_a_cpu_without_amx_says_so():
    before = native.isa()
    with pytest.raises(RuntimeError, match="this CPU has no amx_int8; it can run"):
        native.set_isa("amx_int8")
    assert native.isa() == before
