"""The token tree in plain torch: the oracle of every backend. `TokenTree` states the contracts."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import TreeArrays
from pybeam.contracts import PAGE_CELLS, Survivors


def tree_append(tree: TreeArrays, slot: Tensor, survivors: Survivors, eos_id: int) -> None:
    for a, p in enumerate(slot.tolist()):
        going_on = range(int(survivors.num_finished[a]), int(survivors.count[a]))
        parents, tokens = survivors.parent[a].tolist(), survivors.token[a].tolist()
        is_live = {j: tokens[j] != eos_id for j in going_on}
        inherits = [(row, parents[j]) for row, j in enumerate(going_on) if is_live[j]]
        _inherit(tree, p, inherits)
        old_node = tree.row_node[p].clone()
        for row, j in enumerate(going_on):
            node = int(old_node[parents[j]]) if parents[j] >= 0 else -1
            if not is_live[j]:
                tree.row_node[p, row], tree.row_cell[p, row] = node, -1
                continue
            new, live = int(tree.num_nodes[p]), int(tree.num_live[p])
            has_room = new < tree.token.shape[1] and live < tree.live_cell.shape[1]
            assert has_room, "the token tree is full"
            if tree.num_free[p] == 0:
                _take_page(tree, p)
            tree.num_free[p] -= 1
            cell = tree.free_cell[p, int(tree.num_free[p])]
            tree.token[p, new], tree.parent[p, new] = tokens[j], node
            tree.log_prob[p, new] = survivors.log_prob[a, j]
            tree.row_node[p, row], tree.row_cell[p, row] = new, cell
            tree.live_cell[p, live] = cell
            _see_new(tree, p, row, live)
            tree.num_nodes[p] += 1
            tree.num_live[p] += 1
        if _has_paths(tree):
            tree.path_length[p] += any(is_live.values())


def _has_paths(tree: TreeArrays) -> bool:
    return tree.live_mask.shape[2] == 0


def _see_new(tree: TreeArrays, p: int, row: int, live: int) -> None:
    """Let a row see its own new node, which is the last of the live list."""
    if _has_paths(tree):
        length = int(tree.path_length[p])
        assert length < tree.path.shape[2], "a path is full"
        tree.path[p, row, length] = live
    else:
        tree.live_mask[p, live] = 0
        tree.live_mask[p, live, row // 64] = _word(1 << row % 64)


def _word(bits: int) -> int:
    """Return a 64-bit mask as the signed number that an int64 tensor holds."""
    return bits - (1 << 64) if bits >> 63 else bits


def _inherit(tree: TreeArrays, p: int, inherits: Sequence[tuple[int, int]]) -> None:
    """Let every row see what its parent sees. `inherits` are rows and their parents."""
    if _has_paths(tree):
        _inherit_paths(tree, p, inherits)
    else:
        _inherit_masks(tree, p, inherits)


def _inherit_masks(tree: TreeArrays, p: int, inherits: Sequence[tuple[int, int]]) -> None:
    seen = {}
    for u in range(int(tree.num_live[p])):
        words = [bits % (1 << 64) for bits in tree.live_mask[p, u].tolist()]
        new = [0] * len(words)
        for row, parent in inherits:
            if parent >= 0 and words[parent // 64] >> parent % 64 & 1:
                new[row // 64] |= 1 << row % 64
        if any(new):
            seen[u] = [_word(bits) for bits in new]
    for u, kept in _keep(tree, p, seen).items():
        tree.live_mask[p, kept] = torch.tensor(seen[u], device=tree.live_mask.device)


def _inherit_paths(tree: TreeArrays, p: int, inherits: Sequence[tuple[int, int]]) -> None:
    length = int(tree.path_length[p])
    old = tree.path[p, :, :length].tolist()
    new = {row: old[parent] for row, parent in inherits if parent >= 0}
    place = _keep(tree, p, {u for path in new.values() for u in path if u >= 0})
    tree.path[p, :, : length + 1] = -1
    for row, path in new.items():
        kept = [place.get(u, -1) for u in path]
        tree.path[p, row, :length] = torch.tensor(kept, dtype=torch.int32)


def _keep(tree: TreeArrays, p: int, seen: Container[int]) -> dict[int, int]:
    """Keep these nodes of the live list, and free the cells of all others. Returns old and new places."""
    place: dict[int, int] = {}
    for u, cell in enumerate(tree.live_cell[p, : int(tree.num_live[p])].tolist()):
        if u in seen:
            tree.live_cell[p, len(place)] = cell
            place[u] = len(place)
        else:
            tree.free_cell[p, int(tree.num_free[p])] = cell
            tree.num_free[p] += 1
    tree.num_live[p] = len(place)
    return place


def _take_page(tree: TreeArrays, p: int) -> None:
    num_free_pages = tree.num_free_pages
    assert num_free_pages > 0, "the page pool is empty; the engine must reserve before it appends"
    num_free_pages -= 1
    taken = int(tree.free_page[int(num_free_pages)])
    tree.page[p, int(tree.num_pages[p])] = taken
    tree.num_pages[p] += 1
    # a stack: the lowest cell of the page is used first
    cells = range(PAGE_CELLS * (taken + 1) - 1, PAGE_CELLS * taken - 1, -1)
    tree.free_cell[p, :PAGE_CELLS] = torch.tensor(list(cells), dtype=torch.int32)
    tree.num_free[p] = PAGE_CELLS


def tree_release(tree: TreeArrays, slot: Tensor) -> None:
    for p in slot.tolist():
        n, held = int(tree.num_free_pages), int(tree.num_pages[p])
        tree.free_page[n : n + held] = tree.page[p, :held]
        tree.num_free_pages.add_(held)
        for counter in (
            tree.num_nodes,
            tree.num_live,
            tree.path_length,
            tree.num_free,
            tree.num_pages,
        ):
            counter[p] = 0
