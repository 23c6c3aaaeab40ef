"""The token tree: every hypothesis of a source as a path in one append-only tree.

A beam step never moves keys or values. Each slot owns nodes (token, parent). A node's key and value are
written once, into a *cell* of a pool made of pages of ``PAGE_CELLS`` cells. Nodes that some row sees are in
the *live list*, in the order in which they were appended. A node that no row sees leaves it, and its cell is
used again. Its token stays, so that finished hypotheses can be read back. Closing a slot returns its pages.

Two representations say which rows see a live node, and both give the same lists, cells and pages:

* *masks*: a bit mask per live node. After `append`, bit b is set in the node of row b and in its ancestors.
  All rows together read every live node once, which suits long outputs, whose rows share most nodes.
* *paths*: for each row the places of its ancestors in the live list, from the root to its own node. Each row
  reads its own nodes, which suits beams that are wide and short: most nodes belong to few rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.backends.arrays import TreeArrays, resized, root_survivors
from pybeam.contracts import MASK_WIDTH, PAGE_CELLS, Survivors

INT = torch.int32
# Trees of wider slots have paths, by the type of their device. On a CPU attention is faster over paths from
# there on, whether outputs are short or long. On other devices masks go as far as they can.
WIDEST_WITH_MASKS = {"cpu": 32}


class TokenTree:
    """Nodes, rows and live lists of ``S`` slots of up to ``K`` rows, ``N`` nodes each.

    Attributes (all on one device):
        token, parent: [S, N] int32; node 0 is the root (the start token), its parent is -1.
        log_prob: [S, N] float32, log-probability of each node's token given its path.
        num_nodes: [S] int32.
        row_node, row_cell: [S, K] int32, node and cell of every entry of the beam. An ended entry keeps its
            last node, and its cell is -1.
        live_cell: [S, U] int32; live_mask: [S, U, W] int64, W is 0 in a tree that has paths; num_live: [S].
        path: [S, K, T] int32, places in the live list; -1 in the line of an entry that has no row; T is 0 in
            a tree that has masks.
        path_length: [S] int32, columns of `path` that are in use: tokens of the rows, start token included.
        free_cell: [S, F] int32, a stack; num_free: [S] int32.
        page: [S, P] int32; num_pages: [S] int32; free_page: [pages] int32, a stack; num_free_pages: [1].
        by_cell: arrays of others, by their owners, with a line for every cell.

    Args:
        backend: computes what changes the tree.
        device: where it is.
        may_have_paths: whether wide slots get paths; guesses of a draft need masks.
    """

    def __init__(
        self, backend: Backend, device: torch.device, *, may_have_paths: bool = True
    ) -> None:
        self.backend = backend
        self._arrays: TreeArrays | None = None  # None: some array has been replaced
        self._may_have_paths = may_have_paths
        self.widest_with_masks = WIDEST_WITH_MASKS.get(device.type, MASK_WIDTH)

        def empty(*shape: int, dtype: torch.dtype = INT) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.token, self.parent = empty(0, 0), empty(0, 0)
        self.log_prob = empty(0, 0, dtype=torch.float32)
        self.row_node, self.row_cell = empty(0, 0), empty(0, 0)
        self.live_cell, self.live_mask = empty(0, 0), empty(0, 0, 1, dtype=torch.int64)
        self.path = empty(0, 0, 0)
        self.free_cell, self.page = empty(0, 0), empty(0, 0)
        self.num_nodes, self.num_live, self.num_free, self.num_pages = (empty(0) for _ in range(4))
        self.path_length = empty(0)
        self.free_page, self.num_free_pages = empty(0), empty(1)
        self.length = 0  # room for so many tokens of a hypothesis, start token included
        self.num_total_pages, self.by_cell = 0, dict[object, Tensor]()
        # the pool grows up to here, though more may be claimed: claims are more than what is taken
        self.max_pages: int | None = None

    @property
    def arrays(self) -> TreeArrays:
        """All arrays as they are now. They are the same object until `reserve` replaces some."""
        if self._arrays is None:
            self._arrays = TreeArrays(*[getattr(self, name) for name in TreeArrays._fields])
        return self._arrays

    @property
    def has_paths(self) -> bool:
        """Whether paths say which nodes a row sees, and no masks."""
        return self.live_mask.shape[2] == 0

    @property
    def num_cells(self) -> int:
        """Number of cells in the pool, for which keys and values need room."""
        return self.num_total_pages * PAGE_CELLS

    def reserve(
        self, num_slots: int, width: int, length: int, num_nodes: int | None = None
    ) -> None:
        """Make room for that many slots, rows per slot and tokens per hypothesis (start included).

        `num_nodes` is the number of nodes per slot; None: as many as a beam may need.
        """
        assert self._may_have_paths or width <= MASK_WIDTH
        self._arrays = None
        self.length = max(self.length, length)
        num_nodes = width * length if num_nodes is None else num_nodes
        num_pages = -(-num_nodes // PAGE_CELLS) + 1
        for name in ("token", "parent", "log_prob"):
            # the parent of a root is -1, and so is that of slots that were never used
            fill = -1 if name == "parent" else 0
            setattr(self, name, resized(getattr(self, name), (num_slots, num_nodes), fill))
        for name in ("row_node", "row_cell"):
            setattr(self, name, resized(getattr(self, name), (num_slots, width)))
        self.live_cell = resized(self.live_cell, (num_slots, num_nodes))
        is_wide = self._may_have_paths and width > self.widest_with_masks
        if is_wide and not self.has_paths:
            self._find_paths()
        num_words = 0 if self.has_paths else 1 if width <= 64 else 2
        self.live_mask = resized(self.live_mask, (num_slots, num_nodes, num_words))
        num_columns = self.length if self.has_paths else 0
        self.path = resized(self.path, (num_slots, width, num_columns), fill=-1)
        self.free_cell = resized(self.free_cell, (num_slots, num_pages * PAGE_CELLS))
        self.page = resized(self.page, (num_slots, num_pages))
        for name in ("num_nodes", "num_live", "path_length", "num_free", "num_pages"):
            setattr(self, name, resized(getattr(self, name), (num_slots,)))

    def _find_paths(self) -> None:
        """Replace masks by the paths that they stand for."""
        num_slots, width = self.path.shape[:2]
        num_live = self.live_mask.shape[1]
        bit = torch.arange(width, device=self.path.device)
        words = self.live_mask.index_select(2, bit >> 6)  # [S, U, K]
        is_seen = ((words >> (bit & 63)) & 1).bool().transpose(1, 2)  # [S, K, U]
        is_live = torch.arange(num_live, device=self.path.device) < self.num_live[:, None]
        is_seen = is_seen & is_live[:num_slots, None]
        number = is_seen.cumsum(2)
        most = int(number.max()) if number.numel() else 0
        # nodes that are not seen go to a column of their own
        column = torch.where(is_seen, number - 1, most)
        place = torch.arange(num_live, dtype=INT, device=self.path.device).expand_as(column)
        path = self.path.new_full((num_slots, width, most + 1), -1).scatter_(2, column, place)
        self.path = path[:, :, :most].contiguous()
        self.path_length[:num_slots] = (self.path >= 0).sum(2).amax(1) if most else 0
        self.live_mask = self.live_mask[:, :, :0]

    def pages_of(self, num_steps: int) -> int:
        """Return the most new pages that one beam needs to append its survivors of so many steps."""
        return -(-num_steps * self.row_node.shape[1] // PAGE_CELLS)

    def reserve_pages(self, num_new: int, num_free: int | None = None) -> int:
        """Make sure that `num_new` pages are free. The pool doubles. Returns how many pages were added.

        At least `num_free` pages are free. Without this number the device is asked.
        """
        num_free = int(self.num_free_pages) if num_free is None else num_free
        old = self.num_total_pages
        total = max(old + num_new - num_free, 2 * old)
        total = total if self.max_pages is None else min(total, self.max_pages)
        if num_free >= num_new or total <= old:
            return 0
        self.free_page = resized(self.free_page, (total,))
        self._arrays = None
        added = torch.arange(total - 1, old - 1, -1, dtype=INT, device=self.free_page.device)
        place = torch.arange(total - old, device=added.device) + self.num_free_pages
        self.free_page[place] = added
        self.num_free_pages += total - old
        self.num_total_pages = total
        return total - old

    def open(self, slot: Tensor, start_id: int) -> None:
        """Start empty slots [A] with one row each: the start token."""
        self.append(slot, root_survivors(slot, start_id), eos_id=-1)

    def append(self, slot: Tensor, survivors: Survivors, eos_id: int) -> None:
        """Replace the rows of slots [A] by the survivors [A, C] that have not finished, in order.

        ``new_mask[n]`` has bit b iff ``old_mask[n]`` has bit ``parent[b]``; ``new_path[b]`` is
        ``old_path[parent[b]]`` and the new node. A survivor whose token is `eos_id` has ended: it keeps its
        parent's node and gets neither node nor cell nor bit nor path.
        """
        self.backend.tree_append(self.arrays, slot, survivors, eos_id)

    def paths(self, slot: Tensor, node: Tensor, capacity: int | None = None) -> Tensor:
        """Return the tokens down to these nodes, start token first, padded with -1: [n, capacity] int32.

        Without `capacity` there is room for the longest hypothesis.
        """
        capacity = self.length if capacity is None else capacity
        return self.backend.backtrace(self.token, self.parent, slot, node, capacity)[0]

    def release(self, slot: Tensor) -> None:
        """Empty these slots, and return their pages to the pool."""
        self.backend.tree_release(self.arrays, slot)

    def forget(self, num_known: Tensor) -> None:
        """Poison what no counter counts; of nodes, what is behind the first `num_known` [S] of each slot.

        The null slot stays: rows without a source read it.
        """
        nodes, lives = (self.token, self.parent, self.log_prob), (self.live_cell, self.live_mask)
        counted = (
            (nodes, num_known),
            (lives, self.num_live),
            ([self.path.transpose(1, 2)], self.path_length),
            ([self.free_cell], self.num_free),
            ([self.page], self.num_pages),
        )
        for arrays, count in counted:
            poison.forget_behind([array[1:] for array in arrays], count[1:])
        poison.forget_behind([self.free_page[None]], self.num_free_pages)

    def is_forgotten(self, new: Tensor) -> Tensor:
        """Return which cells [num_cells] hold nothing: no row sees them, or they are `new` [n], or -1."""
        nowhere = self.num_cells
        column = torch.arange(self.live_cell.shape[1], device=new.device)
        live = torch.where(column < self.num_live[:, None], self.live_cell, nowhere).flatten()
        is_forgotten = torch.ones(nowhere + 1, dtype=torch.bool, device=new.device)
        is_forgotten.index_fill_(0, live.long(), False)
        is_forgotten.index_fill_(0, torch.where(new < 0, nowhere, new).long(), True)
        return is_forgotten[:-1]
