"""The token tree's kernels where the room ends: nothing is written outside, nobody else suffers."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends
from pybeam.backends.arrays import tree_survivors
from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.token_tree import TokenTree
from support.asserts import tree_in_use
from support.invariants import check_tree

EOS = 2
CANARY = -1_000_003
BORDER = 64


class GuardedTree(TokenTree):
    """A tree whose tensors lie between borders that nobody may write."""

    def __init__(self, device: torch.device, num_slots: int, width: int, length: int) -> None:
        super().__init__(backends.load("triton"), device)
        self.reserve(num_slots, width, length)
        self._guarded: list[torch.Tensor] = []

    def guard(self) -> None:
        for name, tensor in list(vars(self).items()):
            if not isinstance(tensor, torch.Tensor):
                continue
            held = tensor.new_full((tensor.numel() + 2 * BORDER,), CANARY)
            inside = held[BORDER : BORDER + tensor.numel()].view(tensor.shape)
            inside.copy_(tensor)
            setattr(self, name, inside)
            self._guarded.append(held)

    def check(self) -> None:
        check_tree(self)
        for held in self._guarded:
            assert bool((held[:BORDER] == CANARY).all())
            assert bool((held[-BORDER:] == CANARY).all())


def grow(tree: TokenTree, slots: list[int], parents: list[int], tokens: list[int]) -> None:
    """Append the same survivors to the beams of these slots."""
    device = tree.token.device
    num, ints = len(slots), dict(dtype=torch.int32, device=device)
    tree.append(
        torch.tensor(slots, **ints),
        tree_survivors(
            token=torch.tensor([tokens] * num, **ints),
            parent=torch.tensor([parents] * num, **ints),
            log_prob=torch.zeros(num, len(tokens), device=device),
        ),
        eos_id=EOS,
    )


def test_a_full_tree_takes_what_fits(device):
    tree = GuardedTree(device, num_slots=3, width=3, length=2)  # 6 nodes
    tree.reserve_pages(3)
    tree.guard()
    tree.open(torch.tensor([0, 1, 2], dtype=torch.int32, device=device), start_id=1)
    grow(tree, [1], [0, 0, 0], [5, 6, 7])
    for _ in range(3):
        grow(tree, [1], [0, 1, 2], [5, 6, 7])
        tree.check()
    assert tree.num_nodes.tolist() == [1, 6, 1]
    assert tree.token[1].tolist() == [1, 5, 6, 7, 5, 6]


def test_an_empty_pool_gives_no_cells(device):
    tree = GuardedTree(device, num_slots=4, width=20, length=4)
    tree.reserve_pages(4)
    tree.guard()
    tree.open(torch.tensor([0, 1, 2], dtype=torch.int32, device=device), start_id=1)
    # 21 cells each, one page is left: the first source that comes gets it
    grow(tree, [2, 0, 1], [0] * 20, list(range(5, 25)))
    tree.check()
    assert int(tree.num_free_pages) == 0
    assert sorted(tree.num_live.tolist()[:3]) == [PAGE_CELLS, PAGE_CELLS, 21]
    cells = tree.row_cell.tolist()
    assert sorted(sum(cell >= 0 for cell in row) for row in cells[:3]) == [15, 15, 20]
    # and what the others could not have are rows of their parents' node
    poor = [p for p in range(3) if int(tree.num_live[p]) == PAGE_CELLS]
    assert all(tree.row_node[p, 15:].tolist() == [0] * 5 for p in poor)


@pytest.mark.parametrize("slot", [-1, 3, 2**30])
def test_a_slot_that_is_not_there_is_no_slot(device, slot):
    tree = GuardedTree(device, num_slots=3, width=2, length=40)
    tree.reserve_pages(5)
    tree.guard()
    everyone = torch.tensor([0, slot, 2], dtype=torch.int32, device=device)
    tree.open(everyone, start_id=1)
    for _ in range(10):
        grow(tree, [slot, 2, slot, 0], [0, 0], [5, 6])
        tree.check()
    assert tree.num_nodes.tolist() == [21, 0, 21]
    tree.release(everyone)
    tree.check()
    assert int(tree.num_free_pages) == tree.num_total_pages


def test_parents_that_are_not_there(device):
    tree = GuardedTree(device, num_slots=1, width=3, length=5)
    tree.reserve_pages(2)
    tree.guard()
    tree.open(torch.zeros(1, dtype=torch.int32, device=device), start_id=1)
    grow(tree, [0], [-7, 9, 0, 0, 0, 0], [5, 6, 7, 8, 9, 9])  # more survivors than rows, too
    tree.check()
    assert tree.parent[0, 1:4].tolist() == [-1, -1, 0]
    assert int(tree.num_nodes) == 4


def test_pages_of_many_sources(device):
    """As the reference, but for the order in which sources take pages."""
    trees = [TokenTree(backends.load(name), device) for name in ("reference", "triton")]
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(0)).int().to(device)
    for tree in trees:
        tree.reserve(200, 20, 4)
        tree.reserve_pages(800)
        tree.open(slots, start_id=1)
        grow(tree, slots.tolist(), [0] * 20, [EOS] * 5 + list(range(5, 20)))
        tree.release(slots[::2].contiguous())
        check_tree(tree)
    assert tree_in_use(trees[0]) == tree_in_use(trees[1])


def test_a_source_of_many_pages_gives_all_back(device):
    """More pages than a release moves at a time."""
    tree = GuardedTree(device, num_slots=1, width=40, length=10)
    tree.reserve_pages(24)
    tree.guard()
    slot = torch.zeros(1, dtype=torch.int32, device=device)
    tree.open(slot, start_id=1)
    grow(tree, [0], [0] * 40, list(range(5, 45)))
    for _ in range(7):
        grow(tree, [0], list(range(40)), list(range(5, 45)))
    assert int(tree.num_pages) == 21  # of 321 cells
    tree.release(slot)
    tree.check()
    num_free = int(tree.num_free_pages)
    assert sorted(tree.free_page[:num_free].tolist()) == list(range(tree.num_total_pages))
