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
from support import compiled
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
def library() -> ctypes.CDLL:
    loaded = compiled.library(SOURCE, ["-O0", f"-I{ROOT / 'csrc'}"])
    loaded.multiply.restype = ctypes.c_int64
    return loaded


def split(x: Tensor, large: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values, and the inputs in the columns `large` `[rows, 4]` as the kernel's `LargeInput`."""
    high = torch.zeros_like(x).scatter(1, large, (x.gather(1, large) + 64) >> 7)
    parts = torch.zeros(*large.shape, 2, dtype=torch.int64)
    parts[..., 0] = large // 4
    place = (8 + large % 4)[..., None]
    parts.view(torch.int8).scatter_(2, place, high.gather(1, large)[..., None].to(torch.int8))
    return (x - 128 * high).to(torch.int8), parts


def multiply(
    library, x: Tensor, q: Tensor, y: Tensor, adds: bool, first: int, last: int, large=None
) -> int:
    """y = x q^T, or y += x q^T, in the rows `first .. last`. Return the number of products of tiles."""
    depth = x.shape[1]
    values, parts = (x, None) if large is None else split(x, large)
    padded = torch.nn.functional.pad(values, (0, -depth % 4)).contiguous()
    offset = -128 * x.sum(1, dtype=torch.int32)
    weight = pack(Quantised(q, torch.ones(len(q))))
    tensors = padded, offset, parts, weight, y
    pointers = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]
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


@pytest.mark.thinned(most=4)
@with_vectors
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("depth", [200, 256, 130])
@pytest.mark.parametrize("rows", [(0, 16), (3, 20), (5, 37)])
def test_large_inputs_in_groups_of_tiles_and_behind(isa, library, rows, depth, adds):
    """Sums are exact, and have the bits of rows that vectors multiply one by one."""
    first, last = rows
    q = randoms(70, depth)
    large = torch.stack([torch.randperm(depth)[:4] for _ in range(last)])
    large[1::3], large[2::3] = torch.arange(4), torch.arange(depth - 4, depth)
    x = torch.randint(-127, 128, (last, depth), dtype=torch.int32)
    x.scatter_(1, large, torch.randint(-127 * 128, 127 * 128 + 1, large.shape, dtype=torch.int32))
    y = torch.randint(-99, 99, (last, 70)).float()
    if not adds:
        y[first:] = 0.0
    alone, expected = y.clone(), y.clone()
    expected[first:] += (x[first:] @ q.int().t()).float()
    assert multiply(library, x, q, y, adds, first, last, large) > 0
    for row in range(first, last):
        assert multiply(library, x, q, alone, adds, row, row + 1, large) == 0
    assert torch.equal(y, alone) and torch.equal(y, expected)


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


@pytest.mark.slow
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
