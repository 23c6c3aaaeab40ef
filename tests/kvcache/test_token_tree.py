"""The token tree: backends agree bit for bit, and masks and paths say exactly who descends from whom."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends
from pybeam.backends.arrays import tree_survivors
from pybeam.contracts import MASK_WIDTH, Survivors
from pybeam.kvcache import token_tree
from pybeam.kvcache.token_tree import TokenTree
from support.asserts import tree_in_use, with_own_pages
from support.invariants import check_tree
from support.threads import every_thread_count
from support.tree_beams import EOS, Beams, ints, new_tree, places_seen


@pytest.fixture(scope="module")
def native():
    return pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.fixture(autouse=True, params=["masks", "paths"])
def representation(request, monkeypatch, device):
    widest = 0 if request.param == "paths" else MASK_WIDTH
    monkeypatch.setitem(token_tree.WIDEST_WITH_MASKS, device.type, widest)


def assert_rows_see_ancestors(tree: TokenTree, beams: Beams) -> None:
    """Row b sees a live node iff it is live and the node is on its path."""
    for p, rows in beams.rows.items():
        num_nodes = int(tree.num_nodes[p])
        parent = tree.parent[p, :num_nodes].tolist()
        token = tree.token[p, :num_nodes].tolist()
        node_of_cell: dict[int, int] = {}
        for b, (path, is_ended) in enumerate(rows):
            node = int(tree.row_node[p, b])
            assert (int(tree.row_cell[p, b]) == -1) == is_ended
            words, ancestors = [], set()
            while node >= 0:
                words.append(token[node])
                ancestors.add(node)
                node = parent[node]
            assert tuple(words[::-1]) == path
            seen = [int(tree.live_cell[p, u]) for u in places_seen(tree, p, b)]
            assert len(set(seen)) == len(seen) == (0 if is_ended else len(ancestors))
            if not is_ended:
                assert int(tree.row_cell[p, b]) in seen
                # append order is node order, so cells and nodes pair up along a path
                for cell, ancestor in zip(seen, sorted(ancestors), strict=True):
                    assert node_of_cell.setdefault(cell, ancestor) == ancestor
        for b in range(len(rows), tree.row_cell.shape[1]):
            assert not places_seen(tree, p, b)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("width", [1, 5, 64, 65, 128])
def test_random_beams(backend, device, width):
    num_slots, length = 4, 9 if width > 5 else 30
    beams = Beams(num_slots, width, seed=width, device=device)
    trees = [new_tree(name, num_slots, width, length, device) for name in ("reference", backend)]
    if backend == "reference":
        trees.pop()
    open_slots: list[int] = []
    for step in range(2 * length):
        closed = [p for p in open_slots if not beams.rows[p] or beams.random(length) == 0]
        if step in (length, 2 * length - 1):
            closed = list(open_slots)  # no slot lives longer than its reserve
        opened = [p for p in range(num_slots) if p not in open_slots and step % 4 == p]
        open_slots = [p for p in open_slots if p not in closed] + opened
        beams.open(opened)
        for p in closed:
            if p not in opened:
                beams.rows[p] = []
        moving = [p for p in reversed(open_slots) if beams.random(3)]
        survivors = beams.step(moving)
        for tree in trees:
            tree.release(ints(closed).to(device))
            tree.open(ints(opened).to(device), start_id=1)
            tree.append(ints(moving).to(device), survivors, eos_id=EOS)
            check_tree(tree)
            assert_rows_see_ancestors(tree, beams)
        assert tree_in_use(trees[0]) == tree_in_use(trees[-1])
        for p in open_slots:
            held = len(beams.rows[p])
            nodes = [tree.row_node[p, :held].tolist() for tree in trees]
            cells = [with_own_pages(tree, tree.row_cell[p, :held].tolist()) for tree in trees]
            assert nodes[0] == nodes[-1] and cells[0] == cells[-1]


@pytest.mark.slow
@pytest.mark.thinned(most=1)
def test_pages_do_not_depend_on_threads(native):
    states = []
    for _ in every_thread_count():
        tree, beams = new_tree("native", 64, 32, 12), Beams(64, 32, seed=3)
        slots = list(range(64))
        tree.open(ints(slots), start_id=1)
        beams.open(slots)
        for _ in range(10):
            tree.append(ints(slots), beams.step(slots), eos_id=EOS)
        check_tree(tree)
        states.append([tree_in_use(tree), tree.page.tolist(), tree.free_page.tolist()])
    assert all(state == states[0] for state in states)


def test_release_returns_every_page(backend, device):
    tree, beams = new_tree(backend, 3, 8, 10, device), Beams(3, 8, seed=4, device=device)
    num_free_pages = int(tree.num_free_pages)
    tree.open(ints([0, 2]).to(device), start_id=1)
    beams.open([0, 2])
    for _ in range(8):
        tree.append(ints([2, 0]).to(device), beams.step([2, 0]), eos_id=EOS)
    assert int(tree.num_free_pages) < num_free_pages
    tree.release(ints([0, 2]).to(device))
    assert int(tree.num_free_pages) == num_free_pages
    check_tree(tree)


def test_growing_keeps_what_is_there(backend, device):
    tree, beams = new_tree(backend, 2, 60, 4, device), Beams(3, 60, seed=5, device=device)
    tree.open(ints([1]).to(device), start_id=1)
    beams.open([1])
    tree.append(ints([1]).to(device), beams.step([1]), eos_id=EOS)
    tree.reserve(3, 70, 6)  # masks get a second word, paths more columns
    tree.reserve_pages(100)
    assert_rows_see_ancestors(tree, beams)
    tree.append(ints([1]).to(device), beams.step([1]), eos_id=EOS)
    check_tree(tree)
    assert_rows_see_ancestors(tree, beams)


def survivors(parent=0, token=5, first=0, count=1, capacity=1) -> Survivors:
    shape = dict(size=(1, capacity), dtype=torch.int32)
    return tree_survivors(
        token=torch.full(fill_value=token, **shape),
        parent=torch.full(fill_value=parent, **shape),
        log_prob=torch.zeros(1, capacity),
        count=ints([count]),
        num_finished=ints([first]),
    )


@pytest.mark.parametrize(
    ("slot", "changes", "message"),
    [
        ([9], {}, "`slot` is out of range"),
        ([-1], {}, "`slot` is out of range"),
        ([0], dict(parent=2), "parent is out of range"),
        ([0], dict(parent=-2), "parent is out of range"),
        ([0], dict(count=2), "out of range"),
        ([0], dict(first=-1), "out of range"),
        ([0], dict(count=3, capacity=3), "more survivors than rows"),
    ],
)
def test_native_refuses_to_write_out_of_bounds(native, slot, changes, message):
    tree = new_tree("native", 2, 2, 3)
    tree.open(ints([0]), start_id=1)
    before = tree_in_use(tree)
    with pytest.raises(RuntimeError, match=message):
        tree.append(ints(slot), survivors(**changes), EOS)
    assert tree_in_use(tree) == before


def test_native_refuses_a_slot_named_twice(native):
    tree = new_tree("native", 2, 2, 3)
    one = survivors(parent=-1)
    twice = Survivors(*[value.repeat(2, *[1] * (value.dim() - 1)) for value in one])
    with pytest.raises(RuntimeError, match="twice"):
        tree.append(ints([1, 1]), twice, EOS)


@pytest.fixture
def on_the_host(backend):
    """A backend that raises; kernels of a device leave out what does not fit, see `test_tree_bounds`."""
    if backend == "triton":
        pytest.skip("its kernels have nobody to raise to")
    return backend


def test_a_full_tree_is_an_error(on_the_host):
    tree = new_tree(on_the_host, 1, 1, 2)
    tree.open(ints([0]), start_id=1)
    tree.append(ints([0]), survivors(), EOS)
    with pytest.raises((RuntimeError, AssertionError), match=r"full|no room"):
        tree.append(ints([0]), survivors(), EOS)


def test_an_empty_pool_is_an_error(on_the_host):
    tree = TokenTree(backends.load(on_the_host), torch.device("cpu"))
    tree.reserve(1, 1, 40)
    tree.reserve_pages(1)
    tree.open(ints([0]), start_id=1)
    for _ in range(15):
        tree.append(ints([0]), survivors(), EOS)
    with pytest.raises((RuntimeError, AssertionError), match="page pool is empty"):
        tree.append(ints([0]), survivors(), EOS)
