"""Pages of prompts: equal beginnings share them, and nobody loses a page that it uses."""

import random

import pytest
import torch

from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.prefixes import PrefixCells


def prompt(*pages: int, rest: int = 3) -> list[int]:
    """Whole pages, each of one token, and the beginning of another."""
    return [token for token in pages for _ in range(PAGE_CELLS)] + [99] * rest


@pytest.fixture
def cells():
    return PrefixCells(torch.device("cpu"), max_idle=4)


def test_equal_beginnings_share_pages(cells):
    placed = cells.place([1, 2, 3], [prompt(1, 2), prompt(1, 3), prompt(4, 2)], [0, 0, 0])
    assert placed.num_known == [0, PAGE_CELLS, 0]
    first, second, third = (cells.cells(slot) for slot in (1, 2, 3))
    assert first[:PAGE_CELLS] == second[:PAGE_CELLS]
    assert not set(first[PAGE_CELLS:]) & set(second[PAGE_CELLS:])
    assert not set(third) & {*first, *second}
    assert cells.length[:4].tolist() == [
        0,
        2 * PAGE_CELLS + 3,
        2 * PAGE_CELLS + 3,
        2 * PAGE_CELLS + 3,
    ]
    assert cells.cell[2, : 2 * PAGE_CELLS + 3].tolist() == second[: 2 * PAGE_CELLS + 3]


def test_the_last_page_is_shared_only_if_it_is_full(cells):
    assert cells.place([1], [prompt(1, rest=0)], [0]).num_known == [0]
    assert cells.place([2], [prompt(1, rest=0)], [0]).num_known == [PAGE_CELLS]
    assert cells.place([3], [prompt(rest=5)], [0]).num_known == [0]
    assert cells.place([4], [prompt(rest=5)], [0]).num_known == [0]


def test_kinds_share_nothing(cells):
    assert cells.place([1, 2], [prompt(1), prompt(1)], [0, 7]).num_known == [0, 0]


def test_pages_wait_for_later_prompts(cells):
    cells.place([1], [prompt(1, 2)], [0])
    cells.release([1])
    assert cells.num_idle == 2
    assert cells.place([1], [prompt(1, 2, 3)], [0]).num_known == [2 * PAGE_CELLS]
    assert cells.num_idle == 0


def test_a_page_stays_while_one_slot_uses_it(cells):
    cells.place([1, 2], [prompt(1), prompt(1)], [0, 0])
    shared = cells.cells(1)[0]
    cells.release([1])
    cells.place([3], [prompt(5, 6, 7, 8)], [0])
    assert shared not in cells.cells(3)
    assert cells.cells(2)[0] == shared


def test_the_page_unused_for_longest_goes_first(cells):
    for slot, page in enumerate((1, 2, 3, 4), start=1):
        cells.place([slot], [prompt(page)], [0])
    cells.release([1, 2, 3, 4])
    cells.place([1], [prompt(1)], [0])
    cells.release([1])
    cells.place([1], [prompt(5)], [0])
    cells.release([1])  # one too many: 2 goes
    assert cells.num_idle == 4
    known = [cells.place([1], [prompt(page)], [0]).num_known[0] > 0 for page in (1, 3, 4, 5, 2)]
    assert known == [True, True, True, True, False]


def test_what_was_not_filled_is_forgotten(cells):
    cells.place([1], [prompt(1)], [0])
    placed = cells.place([2], [prompt(1, 2)], [0])
    cells.forget(placed.new_pages)
    cells.release([2])
    assert cells.place([3], [prompt(1, 2)], [0]).num_known == [PAGE_CELLS]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("max_idle", [0, 1, 3, 10])
def test_random_prompts(max_idle):
    """A page in use holds what its prompts say, and no page is lost, doubled or kept beyond the bound."""
    cells, rng = PrefixCells(torch.device("cpu"), max_idle), random.Random(max_idle)
    held: dict[int, list[int]] = {}  # slot -> prompt
    written: dict[int, tuple[int, ...]] = {}  # cell -> all tokens up to its own
    for _ in range(400):
        if held and rng.random() < 0.45:
            slots = rng.sample(sorted(held), rng.randint(1, min(3, len(held))))
            cells.release(slots)
            for slot in slots:
                del held[slot]
        else:
            free = [slot for slot in range(1, 9) if slot not in held][: rng.randint(1, 3)]
            prompts = [
                prompt(
                    *(rng.randrange(2) for _ in range(rng.randint(0, 4))), rest=rng.randint(0, 9)
                )
                for _ in free
            ]
            placed = cells.place(free, prompts, [0] * len(free)) if free else None
            for i, slot in enumerate(free):
                held[slot] = prompts[i]
                for p in range(placed.num_known[i], len(prompts[i])):
                    written[cells.cells(slot)[p]] = tuple(prompts[i][: p + 1])
            if placed and rng.random() < 0.1:
                cells.forget(placed.new_pages)
        for slot, tokens in held.items():
            for p, cell in enumerate(cells.cells(slot)[: len(tokens)]):
                assert written[cell] == tuple(tokens[: p + 1])
        assert cells.num_idle <= max_idle
        used = {page for pages in cells._pages.values() for page in pages}
        every = [*used, *cells._idle, *cells._free]
        assert sorted(every) == list(range(cells._num_pages))
