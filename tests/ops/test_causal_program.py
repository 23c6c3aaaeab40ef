"""`LayerProgram` gives the bits of one call per operator in a decoder alone, and refuses wrong arguments."""

from __future__ import annotations

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from pybeam.backends import load
from pybeam.models.transformer.fused import fused
from support.causal_stacks import NUM_POSITIONS, SHAPES, Call, one_by_one, stack_of
from support.threads import every_thread_count

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int4": torch.int4,
}
NUM_CELLS = 400


def ints(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


def prompts(vocab: int, spans: list[tuple[int, int]], cells: torch.Tensor, seed: int = 3) -> Call:
    """Rows of sources, each from a position up to another, in lines of 100 cells of its own.

    Positions before the first are those of calls before.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocab, (len(spans), 100), generator=generator)
    table = cells[: 100 * len(spans)].view(len(spans), 100)
    parts = [(a, slice(first, last)) for a, (first, last) in enumerate(spans)]
    lengths = [last - first for first, last in spans]
    return Call(
        token=ints(torch.cat([text[a, part] for a, part in parts])),
        position=ints(torch.cat([torch.arange(100)[part] for _, part in parts])),
        cell=ints(torch.cat([table[a, part] for a, part in parts])),
        cells=(
            ints([0, *torch.tensor(lengths).cumsum(0).tolist()]),
            ints(range(len(spans))),
            ints(table),
            ints([last for _, last in spans]),
        ),
    )


def step(vocab: int, lengths: list[int], num_rows: int, cells: torch.Tensor) -> Call:
    """Rows of sources behind their prompts; each row sees the prompt, and its own cell alone."""
    num = len(lengths)
    table = cells[: 100 * num].view(num, 100).clone()
    own = cells[100 * num : 100 * num + num * num_rows].view(num, num_rows)
    mask = torch.full((num, 100, 1), -1)
    cell_position = torch.zeros(NUM_CELLS)
    for a, length in enumerate(lengths):
        cell_position[table[a, :length]] = torch.arange(length).float()
        cell_position[own[a]] = length
        table[a, length : length + num_rows] = own[a]
        mask[a, length : length + num_rows, 0] = 1 << torch.arange(num_rows)
    total = num * num_rows
    return Call(
        token=ints(torch.arange(total) % vocab),
        position=ints(lengths).repeat_interleave(num_rows),
        cell=ints(own.flatten()),
        cells=(
            ints(range(0, total + 1, num_rows)),
            ints(range(num)),
            ints(table),
            ints(lengths) + num_rows,
            mask,
            ints(range(num_rows)).repeat(num),
        ),
        cell_position=ints(cell_position),
    )


class Both:
    """A stack as a program and operator by operator, each with its pool."""

    def __init__(self, name: str, dtype: torch.dtype, **changes) -> None:
        self.shape = shape = dataclasses.replace(SHAPES[name], **changes)
        self.stack, self.output = stack_of(shape, dtype)
        self.program = fused(native, self.stack, self.output)
        sizes = shape.layers, NUM_CELLS, 2, shape.key_heads, shape.head_size
        self.pools = torch.zeros(sizes), torch.zeros(sizes)
        generator = torch.Generator().manual_seed(5)
        self.cells = torch.randperm(NUM_CELLS, generator=generator)

    def run(self, call: Call, has_output: bool = True, *, pool=None) -> torch.Tensor | None:
        out = torch.empty(len(call.token), self.shape.vocab) if has_output else None
        pool = self.pools[0] if pool is None else pool
        inputs, places = (call.token, call.position), (call.position, call.cell_position)
        self.program.run(out, inputs, pool, None, call.cell, call.cells, (), *places)
        return out

    def expected(self, call: Call) -> torch.Tensor:
        return one_by_one(native, self.stack, self.output, self.pools[1], call)

    def check(self, call: Call) -> None:
        assert torch.equal(self.run(call), self.expected(call))
        assert torch.equal(*self.pools)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_bits_of_one_call_per_operator(isa, name, dtype):
    both = Both(name, DTYPES[dtype])
    both.check(prompts(70, [(0, 30), (0, 1), (0, 17)], both.cells))
    both.check(prompts(70, [(30, 47), (1, 40), (17, 18)], both.cells))
    both.check(step(70, [47, 40, 18], 5, both.cells))
    both.check(step(70, [47], 1, both.cells))


def test_weights_that_bfloat16_holds(isa):
    """A tied table, too, gives the bits of float32 at half the memory."""
    both = Both("qwen3", torch.float32, is_rounded=True)
    assert both.output.packed[0].dtype == torch.int16
    both.check(prompts(70, [(0, 30), (0, 17)], both.cells))
    both.check(step(70, [30, 17], 5, both.cells))


@pytest.mark.parametrize("name", SHAPES)
def test_as_the_reference(name):
    both = Both(name, torch.float32)
    call = prompts(70, [(0, 50), (0, 21)], both.cells)
    found = both.run(call)
    pool = torch.zeros_like(both.pools[0])
    expected = one_by_one(load("reference"), both.stack, both.output, pool, call)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both.pools[0], pool, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_prompt_in_blocks_is_the_prompt_at_once(name, dtype):
    """The same keys, values and logits, wherever the blocks were cut."""
    both = Both(name, DTYPES[dtype])
    whole = both.run(prompts(70, [(0, 90)], both.cells))
    for cuts in ([0, 1, 90], [0, 16, 33, 90], [0, 89, 90], range(0, 91, 7)):
        pool, bounds = torch.zeros_like(both.pools[0]), [*cuts]
        bounds += [90] if bounds[-1] != 90 else []
        parts = [
            both.run(prompts(70, [(first, last)], both.cells), pool=pool)
            for first, last in pairwise(bounds)
        ]
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(pool, both.pools[0])


@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_prompts_without_an_output_leave_the_same_keys_and_values(name):
    both = Both(name, torch.float32)
    call = prompts(70, [(0, 40), (0, 9)], both.cells)
    both.expected(call)
    assert both.run(call, has_output=False) is None
    assert torch.equal(*both.pools)


@pytest.mark.thinned()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_any_team(name, dtype):
    """Layers that are worth a team of threads, where tiny ones are not."""
    both = Both(name, DTYPES[dtype], hidden=128, inner=320, head_size=32, vocab=2000)
    calls = [
        prompts(70, [(0, 90), (0, 33), (0, 64)], both.cells),
        step(70, [90, 33, 64], 8, both.cells),
    ]
    torch.set_num_threads(1)
    expected = [both.expected(call) for call in calls]
    for _ in every_thread_count():
        for call, one in zip(calls, expected, strict=True):
            assert torch.equal(both.run(call), one)


def test_no_row():
    both = Both("qwen3", torch.float32)
    call = prompts(70, [(0, 0)], both.cells)
    assert both.run(call).shape == (0, 70)


def test_rows_of_padding_are_written_nowhere():
    both = Both("gemma3", torch.float32)
    call = step(70, [4], 3, both.cells)
    both.run(prompts(70, [(0, 4)], both.cells))
    alone = both.run(call)
    before = both.pools[0].clone()
    padded = Call(
        token=torch.cat((call.token, ints([0, 0]))),
        position=torch.cat((call.position, ints([0, 0]))),
        cell=torch.cat((call.cell, ints([-1, -1]))),
        cells=(*call.cells[:5], torch.cat((call.cells[5], ints([0, 0])))),
        cell_position=call.cell_position,
    )
    found = both.run(padded)
    assert torch.equal(found[:3], alone) and found.isfinite().all()
    assert torch.equal(both.pools[0], before)


def test_other_backends_have_no_such_program():
    stack, output = stack_of(SHAPES["qwen3"], torch.float32)
    assert fused(load("reference"), stack, output) is None


def behind_prompts(
    call: Call, num_own: int, has_paths: bool
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """The cells of a step, and those of its prompts: all but the last `num_own`, and a cell for each row."""
    offset, slot, table, num_cells, mask, entry = call.cells
    num, num_rows = len(slot), int(offset[1])
    length = num_cells - num_rows - num_own
    own, own_mask = torch.full_like(table, -9), torch.full_like(mask, -9)
    for a, n in enumerate(length.tolist()):
        size = num_own + num_rows
        own[a, :size], own_mask[a, :size] = table[a, n : n + size], mask[a, n : n + size]
    cells = offset, slot, own, num_cells - length
    if has_paths:
        path = [[*range(num_own), num_own + row] for row in range(num_rows)]
        cells = *cells, entry, ints(path).repeat(num, 1, 1), ints([num_own + 1] * num)
    else:
        cells = *cells, own_mask, entry
    from_end = NUM_CELLS - 1 - table
    return cells, (offset, slot, from_end, length)


@pytest.mark.parametrize("has_paths", [False, True])
@pytest.mark.parametrize("num_own", [0, 2])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_rows_behind_prompts(name, num_own, has_paths):
    """They know cells, tokens and positions of their own, and are as those that know all of them."""
    both = Both(name, torch.float32)
    both.run(prompts(70, [(0, 47), (0, 40), (0, 18)], both.cells))
    call, num_rows = step(70, [47, 40, 18], 5, both.cells), 5
    cells, sources = behind_prompts(call, num_own, has_paths)
    last, first = ints([7, 60, 9]), ints([0, 100, 30])
    token = call.token if num_own else last.repeat_interleave(num_rows)
    place = call.position + first.repeat_interleave(num_rows)
    given = (*call.cells[:4], *cells[4:], sources[3]) if has_paths else call.cells
    out, expected = torch.empty(2, 15, 70)
    pool = both.pools[0], None, call.cell
    both.program.run(expected, (token, place), *pool, given, (), call.position, call.cell_position)
    position, cell_position = ints([num_own] * 15), call.cell_position.clone()
    cell_position[call.cell] = -9
    inputs = call.token, position
    both.program.run(out, inputs, *pool, cells, (*sources, last, first), position, cell_position)
    assert torch.equal(out, expected)
    assert torch.equal(cell_position, call.cell_position)


def run_behind_prompts(both: Both, call: Call, cells, sources) -> None:
    """Run rows at position 2, where `sources` are arrays of prompts."""
    inputs, out = (call.token, ints([2] * len(call.token))), torch.empty(len(call.token), 70)
    both.program.run(out, inputs, both.pools[0], None, call.cell, cells, sources, None, None)


@pytest.mark.parametrize(
    ("cell_place", "place", "value", "message"),
    [
        (1, 1, ints([0, 1, 3]), "`slot` is out of range"),
        (0, None, ints([0, 5, 99, 15]), "`offset` is out of range"),
        (3, None, ints([1000] * 3), "more cells than there is room for"),
        (None, 3, ints([45, 38, 101]), "more cells than there is room for"),
        (None, 2, ints([[NUM_CELLS] * 100] * 3), "`cell` is not in the pool"),
        (None, 3, ints([45, 38]), r"an array of prompts` must be \[3\]"),
        (None, 5, None, "prompts must be 6 tensors, but are 5"),
    ],
)
def test_wrong_prompts(cell_place, place, value, message):
    """Whether the cells of rows are wrong, or the arrays of prompts; None leaves them as they are."""
    both = Both("qwen3", torch.float32)
    call = step(70, [47, 40, 18], 5, both.cells)
    cells, sources = map(list, behind_prompts(call, 2, has_paths=False))
    sources += [ints([0] * 3), ints([0] * 3)]
    for given, i in ((cells, cell_place), (sources, place)):
        if i is not None:
            given[i] = value
    sources = tuple(one for one in sources if one is not None)
    with pytest.raises((ValueError, RuntimeError), match=message):
        run_behind_prompts(both, call, tuple(cells), sources)


@pytest.mark.skipif(sys.platform != "linux", reason="`/proc` says how much memory there is")
def test_memory_of_long_prompts_is_given_back():
    """150 MB of addresses, most of which nobody touches."""
    both = Both("qwen3", torch.float32)
    call = step(70, [47, 40, 18], 5, both.cells)
    cells, (*offset_slot, table, length) = behind_prompts(call, 2, has_paths=False)
    rest, num_pages = (length, ints([0] * 3), ints([0] * 3)), []
    for columns in (100, 1 << 22, 100):
        wide = torch.zeros(3, columns, dtype=torch.int32)
        wide[:, :100] = table
        run_behind_prompts(both, call, cells, (*offset_slot, wide, *rest))
        del wide
        num_pages.append(int(Path("/proc/self/statm").read_text().split()[0]))
    before, between, after = num_pages
    assert between - before > 10 * (after - before)


def changed(call: Call, **changes) -> Call:
    return dataclasses.replace(call, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(token=ints([0, 70, 1])), RuntimeError, "`token` must be from 0 to 69, but is 70"),
        (dict(token=ints([0, 1])), ValueError, r"`place` must be \[2\]"),
        (dict(position=ints([0, 1, NUM_POSITIONS])), RuntimeError, "`position` must be from 0 to"),
        (dict(position=ints([0, 1, 3])), RuntimeError, "`position` must be from 0 to 2, but is 3"),
        (dict(cell=ints([0, 1, NUM_CELLS])), RuntimeError, "`cell` must be from 0 to 399"),
        (dict(cell=ints([0, 1, -2])), RuntimeError, "`cell` must be from 0 to 399"),
        (dict(cells=()), ValueError, "cells must be 4, 6, 7 or 8 tensors, but are 0"),
    ],
)
def test_wrong_arguments(changes, error, message):
    both = Both("qwen3", torch.float32)
    call = prompts(70, [(0, 3)], both.cells)
    with pytest.raises(error, match=message):
        both.run(changed(call, **changes))


def test_windows_need_positions_of_cells():
    both = Both("mistral", torch.float32)
    call = step(70, [4], 2, both.cells)
    with pytest.raises(ValueError, match="`cell_position` must be given where there are windows"):
        both.run(changed(call, cell_position=None))
