"""`prompt_attention`: every row of a prompt sees what stands before it, wherever blocks are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from support.prompts_in_pools import SCALE, Prompt, attended, exact, ints, prompt_of
from support.threads import every_thread_count


@pytest.mark.thinned()
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 70])
@pytest.mark.parametrize(
    ("window", "soft_cap"), [(0, 0.0), (1, 0.0), (5, 0.0), (40, 2.0), (0, 1.5)]
)
def test_as_row_by_row(kernel, length, window, soft_cap):
    prompt = prompt_of(length)
    found = attended(kernel, [(prompt, slice(None))], window, soft_cap)
    expected = exact(prompt, window, soft_cap)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("num_distances", [1, 9, 100])
def test_biases_by_distance(kernel, num_distances, window):
    """Distances beyond the table have its last bias."""
    prompt = prompt_of(40)
    bias = torch.randn(4, num_distances, generator=torch.Generator().manual_seed(1))
    found = attended(kernel, [(prompt, slice(None))], window, bias=bias)
    expected = exact(prompt, window, bias=bias)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
@pytest.mark.parametrize("window", [0, 40])
def test_many_rows_in_bfloat16(kernel, window, soft_cap):
    """So many heads that Triton takes tall tiles, which have rows of several prompts."""
    *floats, cell = prompt_of(150, heads=64)
    prompt = Prompt(*(one.bfloat16() for one in floats), cell)
    parts = slice(0, 90), slice(30, 150), slice(149, 150)
    found = attended(kernel, [(prompt, part) for part in parts], window, soft_cap, padding=3)
    every = exact(prompt, window, soft_cap)
    expected = torch.cat([*(every[part] for part in parts), torch.zeros(3, *every.shape[1:])])
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("heads", "key_heads", "size"), [(3, 1, 5), (4, 2, 20), (4, 4, 33), (16, 2, 128)]
)
def test_heads(backend, heads, key_heads, size):
    prompt = prompt_of(40, heads, key_heads, size)
    found = attended(backend, [(prompt, slice(None))], 9)
    torch.testing.assert_close(found.double(), exact(prompt, 9), rtol=1e-5, atol=1e-5)


def test_keys_and_values_in_bfloat16(isa):
    prompt = prompt_of(50)
    rounded = prompt._replace(key=prompt.key.bfloat16(), value=prompt.value.bfloat16())
    wide = rounded._replace(key=rounded.key.float(), value=rounded.value.float())
    found, expected = (attended("native", [(p, slice(None))], 7) for p in (rounded, wide))
    assert torch.equal(found, expected)


@pytest.mark.thinned()
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (20, 0.0), (33, 2.0)])
def test_a_row_does_not_depend_on_its_block(isa, window, soft_cap):
    """Bit for bit, beside whatever rows and sources, with every team."""
    prompt = prompt_of(150, 4, 2, 20)
    torch.set_num_threads(1)
    whole = attended("native", [(prompt, slice(None))], window, soft_cap)
    for _ in every_thread_count():
        for cuts in ((0, 1, 150), (0, 16, 33, 149, 150), tuple(range(0, 151, 10))):
            parts = [
                attended("native", [(prompt, slice(*bounds))], window, soft_cap)
                for bounds in pairwise(cuts)
            ]
            assert torch.equal(torch.cat(parts), whole)
        halves = [(prompt, slice(0, 90)), (prompt, slice(90, 150)), (prompt, slice(40, 41))]
        together = attended("native", halves, window, soft_cap)
        assert torch.equal(together[:150], whole) and torch.equal(together[150], whole[40])


@pytest.mark.parametrize("window", [0, 6])
def test_as_rows_of_a_step(isa, window):
    """A row of a beam that sees the same cells in the same order gets the same bits."""
    prompt = prompt_of(60)
    rows = torch.arange(0, 60, 7)
    place = torch.arange(60)
    back = rows - place[:, None]  # [cells, rows]
    is_seen = (back >= 0) & (back < window) if window else back >= 0
    mask = (is_seen.long() << torch.arange(len(rows))).sum(1)[None, :, None]
    found = torch.ops.pybeam.tree_attention.default(
        prompt.query[rows],
        prompt.key,
        prompt.value,
        ints([0, len(rows)]),
        ints([0]),
        prompt.cell[None],
        ints([60]),
        mask,
        ints(range(len(rows))),
        SCALE,
    )
    assert torch.equal(found, attended("native", [(prompt, slice(None))], window)[rows])


def test_rows_behind_the_last_offset_are_zero(backend):
    prompt = prompt_of(9)
    found = attended(backend, [(prompt, slice(2, 9))], padding=3)
    assert torch.equal(found[:7], attended(backend, [(prompt, slice(2, 9))]))
    assert (found[7:] == 0).all()


def test_no_row(backend):
    assert attended(backend, [(prompt_of(5), slice(0, 0))]).shape == (0, 4, 16)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("position", ints([0, 3]), RuntimeError, "`position` must be from 0 to 2, but is 3"),
        ("position", ints([0, -1]), RuntimeError, "`position` must be from 0 to 2, but is -1"),
        ("position", ints([0]), ValueError, r"`position` must be \[2\]"),
        ("cell", ints([[0, 1, 9]]), RuntimeError, "`cell` is not in the pool"),
        ("window", -1, ValueError, "`window` must be at least 0, but is -1"),
        ("query", torch.zeros(2, 3, 4), ValueError, "`query` has 3 heads"),
    ],
)
def test_wrong_arguments(name, value, error, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    given = dict(
        query=torch.zeros(2, 4, 4),
        key=torch.zeros(9, 2, 4),
        value=torch.zeros(9, 2, 4),
        offset=ints([0, 2]),
        slot=ints([0]),
        cell=ints([[0, 1, 2]]),
        num_cells=ints([3]),
        position=ints([0, 2]),
        scale=1.0,
        window=0,
        soft_cap=0.0,
    )
    native.prompt_attention(*given.values())
    with pytest.raises(error, match=message):
        native.prompt_attention(*(given | {name: value}).values())
