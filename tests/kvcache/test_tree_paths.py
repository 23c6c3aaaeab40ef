"""The law of both representations: a tree with paths is the tree with masks, and attention says the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam import backends
from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.cells import Cells
from pybeam.models.plain_cells import of_sources, with_masks
from support.asserts import assert_close, numbers_of_pages, tree_in_use
from support.invariants import check_tree
from support.tree_beams import EOS, Beams, ints, new_tree, places_seen

HEADS, SIZE = 2, 8
# what a tree has whatever its representation
SIGHT = ("live_mask", "path", "path_length")


def cells_of(tree: TokenTree, slots: list[int]) -> Cells:
    """The cells that the rows of these slots see, by slot and entry."""
    alive = {p: (tree.row_cell[p] >= 0).nonzero()[:, 0].tolist() for p in slots}
    if tree.has_paths:
        alive = {p: [b for b in rows if places_seen(tree, p, b)] for p, rows in alive.items()}
    counts = [len(alive[p]) for p in slots]
    device = tree.token.device
    rows = SimpleNamespace(
        tree=tree,
        slot=ints(slots).to(device),
        offset=torch.tensor([0, *counts]).cumsum(0).int().to(device),
        entry=ints([b for p in slots for b in alive[p]]).to(device),
    )
    return Cells.of_tree(rows)


def attended(tree: TokenTree, cells: Cells, backend: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    device = tree.token.device
    shape = 2, tree.num_cells, HEADS, SIZE
    # the cells of a page hold the same wherever that page came from
    cell = torch.arange(tree.num_cells).view(-1, PAGE_CELLS)
    for page, i in numbers_of_pages(tree).items():
        cell[page] = i * PAGE_CELLS + torch.arange(PAGE_CELLS)
    key, value = torch.randn(shape, generator=generator)[:, cell.flatten()].to(device)
    shape = cells.entry.numel(), HEADS, SIZE
    query = torch.randn(shape, generator=generator).to(device)
    return cells.attend(backends.load(backend), query, key, value, 0.3).cpu()


def check_law(
    backend: str, width: int, num_slots: int, num_steps: int, seed: int, device="cpu"
) -> None:
    """Grow the same beams in a tree of each kind; slots close and open again on the way."""
    masks, paths = trees = [
        new_tree(backend, num_slots, width, num_steps + 2, device, has_paths)
        for has_paths in (False, True)
    ]
    beams = Beams(num_slots, width, seed, device)
    slots = list(range(num_slots))
    opened = slots
    for _ in range(num_steps):
        beams.open(opened)
        for tree in trees:
            tree.open(ints(opened).to(device), start_id=1)
        moving = [p for p in slots if beams.random(4)]
        survivors = beams.step(moving)
        for tree in trees:
            tree.append(ints(moving).to(device), survivors, eos_id=EOS)
            check_tree(tree)
        left, right = tree_in_use(masks), tree_in_use(paths)
        assert {k: v for k, v in left.items() if k not in SIGHT} == {
            k: v for k, v in right.items() if k not in SIGHT
        }
        for p in slots:
            for b in range(len(beams.rows[p])):
                assert places_seen(masks, p, b) == places_seen(paths, p, b)
        cells = cells_of(paths, slots)
        dense = with_masks(of_sources(cells, paths.live_cell.shape[1]))
        expected = cells_of(masks, slots)._replace(offset=cells.offset, entry=cells.entry)
        actual = attended(paths, cells, backend)
        for other in (attended(paths, dense, backend), attended(masks, expected, backend)):
            if backend == "triton":
                assert_close(actual, other)  # parts of a sum meet in another order
            else:
                assert torch.equal(actual, other)
        opened = [p for p in slots if not beams.rows[p] or beams.random(9) == 0]
        for tree in trees:
            tree.release(ints(opened).to(device))
    for tree in trees:
        tree.release(ints(slots).to(device))
        assert int(tree.num_free_pages) == tree.num_total_pages


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("width", [1, 2, 5, 63, 64, 65, 127, 128])
def test_a_tree_with_paths_is_the_tree_with_masks(backend, device, width):
    check_law(
        backend, width, num_slots=3, num_steps=12 if width < 60 else 5, seed=width, device=device
    )


@settings(max_examples=20, deadline=None)
@given(
    width=st.integers(1, 128),
    num_slots=st.integers(1, 4),
    num_steps=st.integers(1, 6),
    seed=st.integers(0, 2**31),
)
def test_whatever_the_beams_do(width, num_slots, num_steps, seed):
    if "native" not in backends.available():
        pytest.skip("the native backend is not built")
    check_law("native", width, num_slots, num_steps, seed)


def test_masks_become_paths(backend, device):
    """A slot that grows wider than masks go keeps what its rows see."""
    tree, beams = new_tree(backend, 3, 5, 6, device), Beams(3, 5, seed=1, device=device)
    other = new_tree(backend, 3, 5, 6, device, has_paths=True)
    beams.open([0, 2])
    for one in (tree, other):
        one.open(ints([0, 2]).to(device), start_id=1)
    for _ in range(3):
        survivors = beams.step([2, 0])
        for one in (tree, other):
            one.append(ints([2, 0]).to(device), survivors, eos_id=EOS)
    assert not tree.has_paths
    tree.widest_with_masks = 5
    for one in (tree, other):
        one.reserve(4, 7, 9)
        one.reserve_pages(20)
    assert tree.has_paths
    for _ in range(2):
        assert tree_in_use(tree) == tree_in_use(other)
        check_tree(tree)
        survivors = beams.step([0, 2])
        for one in (tree, other):
            one.append(ints([0, 2]).to(device), survivors, eos_id=EOS)


def test_guesses_keep_their_masks():
    tree = TokenTree(backends.load("reference"), torch.device("cpu"), may_have_paths=False)
    tree.widest_with_masks = 0
    tree.reserve(1, 5, 9)
    assert not tree.has_paths


@pytest.mark.slow
@pytest.mark.parametrize("width", [129, 500])
def test_wide_beams(backend, device, width):
    tree, beams = new_tree(backend, 2, width, 6, device), Beams(2, width, seed=3, device=device)
    assert tree.has_paths
    oracle = new_tree("reference", 2, width, 6)
    beams.open([0, 1])
    for one in (tree, oracle):
        one.open(ints([0, 1]).to(one.token.device), start_id=1)
    for _ in range(4):
        survivors = beams.step([1, 0])
        for one in (tree, oracle):
            on_device = type(survivors)(*[value.to(one.token.device) for value in survivors])
            one.append(ints([1, 0]).to(one.token.device), on_device, eos_id=EOS)
            check_tree(one)
        assert tree_in_use(tree) == tree_in_use(oracle)
        cells = cells_of(oracle, [0, 1])
        expected = attended(oracle, cells, "reference")
        assert_close(attended(tree, cells_of(tree, [0, 1]), backend), expected)
    tree.release(ints([1, 0]).to(device))
    assert int(tree.num_free_pages) == tree.num_total_pages


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("path_length", 9, "the path of a slot is out of range"),
        ("path", 7, "a node of a path is out of range"),
        ("path", -2, "a node of a path is out of range"),
    ],
)
def test_native_refuses_paths_to_nowhere(name, value, message):
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    tree, beams = new_tree("native", 1, 2, 4, has_paths=True), Beams(1, 2, seed=0)
    tree.open(ints([0]), start_id=1)
    beams.open([0])
    getattr(tree, name).fill_(value)
    one = beams.step([0])._replace(num_finished=ints([0]), count=ints([1]))
    one.parent[:], one.token[:] = 0, 5
    with pytest.raises(RuntimeError, match=message):
        tree.append(ints([0]), one, EOS)
