"""Triton tree attention without a GPU: right in the interpreter, and compiled as it should be."""

from __future__ import annotations

import itertools

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.attention.variants import variant_of
from support.aot import CAPABILITIES_TO_TEST, Launch, assemble, distinct
from support.triton_launches import attention_launch

SIZES = (32, 64, 128, 256)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WORDS = (0, 1, 2)
SPLITS = (1, 4)
# rows per source: for tiles of 8, of 16, of 32 and of 64
ROWS = (5, 12, 20, 50)
# query rows per source, of whatever head: every tile that there is, and several of one source
QUERIES = (5, 8, 9, 16, 17, 32, 33, 64, 500)


def in_turns(choices: list) -> list[tuple]:
    """Every dtype and size with one of the choices; those that lie side by side have different ones."""
    return [
        (dtype, size, choices[(i + j) % len(choices)])
        for i, dtype in enumerate(DTYPES)
        for j, size in enumerate(SIZES)
    ]


def check(launch: Launch, capability: int) -> None:
    assembly = assemble(launch, capability)
    assert assembly.stack == assembly.local == 0, launch.options
    assert assembly.shared <= 99 * 1024  # so that two programs fit a multiprocessor of any GPU
    # the loop over the cells; others find the source of a tile and merge parts
    loop = max(assembly.loops, key=lambda loop: len(loop.instructions))
    row_bytes = launch.options["HEAD_SIZE"] * launch.arguments[0].itemsize
    num_threads = 32 * launch.options["num_warps"]
    # every thread reads its share of the keys and of the values 16 bytes at a time
    num_wide = loop.count(r"\bLDG(STS)?\.E\S*\.128")
    assert num_wide >= 2 * launch.options["BLOCK_N"] * row_bytes // (16 * num_threads)
    assert loop.count(r"\b(LDL|STL)") == 0
    assert (loop.count("HMMA|HGMMA") > 0) == (launch.arguments[0].itemsize == 2)


@pytest.mark.slow
def test_in_the_interpreter():
    # the interpreter gets bfloat16, which is dtype1, wrong
    run_in_interpreter(
        "tests/ops/test_tree_attention.py",
        "tests/ops/test_path_attention.py",
        "tests/ops/test_tree_attention_distances.py",
        "tests/ops/interpreted/test_tree_attention_splits.py",
        "tests/ops/interpreted/test_new_nodes.py",
        "-k",
        "not dtype1 and not wrong_arguments and not threads and not native and not bfloat16",
    )


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("size", SIZES)
def test_few_variants(size, itemsize):
    """`ROWS` has them all, so the tests below compile whatever a launch may choose."""
    chosen = {variant_of(num * 8, 8, size, itemsize) for num in QUERIES}
    assert chosen == {variant_of(num * 8, 8, size, itemsize) for num in ROWS}
    assert len(chosen) == (1 if itemsize == 4 else {128: 3, 256: 2}[size] if size > 64 else 4)


@pytest.mark.parametrize(
    ("size", "has_new", "are_wide"), [(64, True, True), (5, True, False), (120, False, True)]
)
def test_lines_are_said_to_be_wide_where_they_are(size, has_new, are_wide):
    """Triton 3.8 reads two bytes at a time from one of two lines, unless it is told where they begin."""
    launch = attention_launch(5, size, torch.bfloat16, has_new=has_new)
    assert launch.options["ARE_WIDE"] == are_wide


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_trees_are_compiled_well(dtype, size, capability):
    """Every tile with the most to hold: two mask words, parts to merge, and new nodes."""
    given = dict(words=2, num_splits=4, has_new=True)
    launches = [attention_launch(rows, size, dtype, **given) for rows in ROWS]
    for launch in distinct(launches):
        check(launch, capability)


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize(("dtype", "size", "capability"), in_turns([80, 90]), ids=str)
def test_paths_are_compiled_well(dtype, size, capability):
    launches = [
        attention_launch(rows, size, dtype, 0, num_splits, has_paths=True, has_new=has_new)
        for rows in ROWS
        for num_splits in (1, 4)
        for has_new in (False, True)
    ]
    for launch in distinct(launches):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0, launch.options


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (6, torch.bfloat16),
        *(
            pytest.param(size, dtype, marks=[pytest.mark.slow, pytest.mark.thinned()])
            for size in (6, 8, 24, 64, 128, 256)
            for dtype in DTYPES
            if (size, dtype) != (6, torch.bfloat16)
        ),
    ],
    ids=str,
)
def test_paths_alone_leave_no_loop_over_cells_that_all_rows_see(size, dtype):
    """A beam whose rows share no cells: ptxas 12.8 crashed at what was left of products in high tiles."""
    given = dict(has_paths=True, has_shared=False)
    for rows in ROWS if size > 6 else (50,):
        for has_new in (True, False):
            launch = attention_launch(rows, size, dtype, 0, has_new=has_new, **given)
            assembly = assemble(launch, 90)
            assert assembly.stack == assembly.local == 0, launch.options
            assert assembly.count("HMMA|HGMMA|WARPGROUP|LDGSTS|LDGDEPBAR") == 0
            # the loop over paths; the other one finds the source of a tile
            (loop,) = (loop for loop in assembly.loops if loop.count(r"MUFU\.EX2"))
            assert size < 24 or loop.count(r"\bLDG\.E\S*\.128") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(dict(rows=5, size=64, words=1), id="beam"),
        pytest.param(dict(rows=50, size=64, words=1), id="wide beam"),
        pytest.param(dict(rows=5, size=64, words=0), id="cross"),
        pytest.param(dict(rows=5, size=128, words=0, num_splits=4), id="cross, few sources"),
        pytest.param(dict(rows=500, size=64, words=0, is_own=True), id="encoder"),
        pytest.param(dict(rows=120, size=128, words=2), id="draft"),
        pytest.param(dict(rows=5, size=128, words=1, group=4), id="grouped heads"),
        pytest.param(dict(rows=50, size=128, words=2, group=7), id="seven heads of a group"),
        pytest.param(dict(rows=5, size=80, words=1), id="a size that is no power of two"),
        # h2o-danube3 has it: lines begin at 16 bytes, and strides are no multiples of 16 numbers
        pytest.param(dict(rows=50, size=120, words=1), id="a size that is no multiple of 16"),
        pytest.param(dict(rows=20, size=40, words=2), id="a small size that is no multiple of 16"),
        pytest.param(dict(rows=5, size=64, words=1, rules=("bias",)), id="T5"),
        pytest.param(dict(rows=50, size=64, words=1, rules=("bias",)), id="T5, wide beam"),
        pytest.param(
            dict(rows=500, size=64, words=0, is_own=True, rules=("bias",)), id="T5 encoder"
        ),
        pytest.param(dict(rows=5, size=256, words=1, group=2, rules=("window",)), id="Gemma 3"),
        pytest.param(
            dict(rows=5, size=256, words=1, group=2, rules=("window", "cap")), id="Gemma 2"
        ),
    ],
)
def test_uses_are_compiled_well(launch, capability):
    # rows that see masks are those of a step
    has_new = launch["words"] > 0
    check(attention_launch(dtype=torch.float16, has_new=has_new, **launch), capability)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "size", "chosen"), in_turns([(1, 90), (4, 80)]), ids=str)
def test_everything_is_compiled_well(dtype, size, chosen):
    group, capability = chosen
    cases = itertools.product(ROWS, WORDS, SPLITS, (False, True))
    launches = [
        attention_launch(rows, size, dtype, words, num_splits, group, is_own=is_own)
        for rows, words, num_splits, is_own in cases
    ]
    for launch in distinct(launches):
        check(launch, capability)
