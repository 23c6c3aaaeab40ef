"""The invariants of trees, beams and drafts, which hold between any two steps."""

from __future__ import annotations

from pybeam.backends.arrays import NULL_SLOT, RUNNING
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.workspace import Workspace
from pybeam.kvcache.token_tree import TokenTree
from pybeam.state.beam_state import BeamState
from pybeam.state.draft_state import DraftState


def check_tree(tree: TokenTree) -> None:
    """Every owned cell is either live or free, no cell or page has two owners."""
    # whole arrays become lists at once: a tensor's number by itself takes a microsecond
    arrays = (
        tree.page,
        tree.live_cell,
        tree.free_cell,
        tree.num_pages,
        tree.num_live,
        tree.num_free,
    )
    lines = zip(*(array.tolist() for array in arrays), strict=True)
    is_seen = [] if tree.has_paths else (tree.live_mask != 0).any(-1).tolist()
    pages = tree.free_page[: int(tree.num_free_pages)].tolist()
    for p, (page, live_cell, free_cell, num_pages, num_live, num_free) in enumerate(lines):
        owned, live = page[:num_pages], live_cell[:num_live]
        cells = [q * PAGE_CELLS + i for q in owned for i in range(PAGE_CELLS)]
        assert sorted(live + free_cell[:num_free]) == sorted(cells), (
            f"slot {p} has lost or doubled a cell"
        )
        are_seen = paths_see(tree, p, live) if tree.has_paths else all(is_seen[p][:num_live])
        assert are_seen, f"slot {p} keeps a node no row sees"
        pages += owned
    assert sorted(pages) == list(range(tree.num_total_pages)), "a page has two owners or none"


def paths_see(tree: TokenTree, p: int, live: list[int]) -> bool:
    """Whether some path of a slot has each live cell. Asserts that paths end in the rows' own cells."""
    seen: set[int] = set()
    for entry, path in enumerate(tree.path[p, :, : int(tree.path_length[p])].tolist()):
        if not live or not path or path[-1] < 0:
            assert all(place < 0 for place in path), f"entry {entry} of slot {p} has no row"
            continue
        assert path == sorted(set(path)), f"the path of entry {entry} of slot {p} turns back"
        assert live[path[-1]] == int(tree.row_cell[p, entry])
        seen.update(path)
    return seen == set(range(len(live)))


def check_state(state: BeamState) -> None:
    """Entries are in order, and rows are counted; of a `DraftState`, guesses follow one another."""
    if isinstance(state, DraftState):
        check_drafts(state)
        return
    tree, beams = state.tree, state.beams
    check_tree(tree)
    arrays = (beams.is_alive, beams.score, tree.row_node)
    counts = (beams.num_entries, beams.num_rows, tree.num_nodes)
    lines = zip(*(array.tolist() for array in (*arrays, *counts)), strict=True)
    for p, (alive, score, nodes, n, num_rows, num_nodes) in enumerate(lines):
        assert not any(alive[n:]), f"slot {p} has rows behind its last entry"
        assert sum(alive) == num_rows, f"slot {p} counts its rows wrongly"
        assert score[:n] == sorted(score[:n], reverse=True), f"slot {p} is out of order"
        assert all(0 <= node < num_nodes for node in nodes[:n])


def check_drafts(state: DraftState) -> None:
    """The rows of a source are its last token and the guesses behind it, in cells of its own pages."""
    tree, beams = state.tree, state.beams
    pages = tree.free_page[: int(tree.num_free_pages)].tolist()
    for p in range(beams.num_rows.numel()):
        owned = tree.page[p, : int(tree.num_pages[p])].tolist()
        pages += owned
        if p == NULL_SLOT or not owned or int(beams.reason[p]) != RUNNING:
            assert not int(beams.num_rows[p]), f"slot {p} has rows and is not live"
            continue
        depth, n = int(beams.depth[p]), int(beams.num_rows[p])
        assert n >= 1
        assert beams.is_alive[p].tolist() == [q < n for q in range(state.width_capacity)]
        assert int(tree.num_live[p]) == int(tree.num_nodes[p]) == depth + n
        assert tree.row_node[p, :n].tolist() == list(range(depth, depth + n))
        assert tree.parent[p, : depth + n].tolist() == list(range(-1, depth + n - 1))
        cells = [PAGE_CELLS * q + u for q in owned for u in range(PAGE_CELLS)][: depth + n]
        assert tree.live_cell[p, : depth + n].tolist() == cells, f"slot {p} has lost its cells"
        assert tree.row_cell[p, :n].tolist() == cells[depth:]
        seen = tree.live_mask[p, : depth + n]  # [n, W]
        for q in range(n):
            sees = (seen[:, q // 64] >> (q % 64) & 1).tolist()
            assert sees == [u <= depth + q for u in range(depth + n)], f"row {q} of slot {p}"
    assert sorted(pages) == list(range(tree.num_total_pages)), "a page has two owners or none"


def check_all_is_given_back(workspace: Workspace) -> None:
    """Nothing is decoded, and no page and no slot is held."""
    state, slots = workspace.state, workspace.slots
    check_state(state)
    assert int(state.tree.num_free_pages) == state.tree.num_total_pages
    assert len(set(slots.free)) == len(slots.free) == slots.num - 1
