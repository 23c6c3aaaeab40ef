"""`DraftStep`: one step of sources that draft and verify, for paths instead of beams.

The loop, sessions, processors and schedules are those of beams. The rows of a beam compete. Here the rows of
a source are its last token and guesses of the tokens behind it, each the child of the one before. The tree
is a path, and the masks that say which rows see a node are a staircase. `select` decides for every row as in
greedy decoding, and `draft_commit` keeps the tokens that are proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import poison
from pybeam.backends.arrays import (
    DRAFT_COLUMNS,
    NULL_SLOT,
    RUNNING,
    Drafts,
    DraftTokens,
    RowArrays,
)
from pybeam.backends.tensor_beams import new_lines, with_one_eos
from pybeam.backends.transfer import to_device
from pybeam.contracts import PAGE_CELLS, SelectOptions, Survivors
from pybeam.models.rows import Rows
from pybeam.state.forced_decoding import Entries, force
from pybeam.state.live_arrays import INT, LiveArrays
from pybeam.state.new_beam import NewBeam


class DraftStep:
    """Advance sources that have one hypothesis each. `BeamState` describes the methods.

    Attributes:
        drafts: arrays of the guesses, see `Drafts`.
    """

    def __init__(self, arrays: LiveArrays, *, vocab_size: int, pad_id: int) -> None:
        self._arrays = arrays
        self.drafts = Drafts.empty(arrays.device)
        self._vocab_size = vocab_size
        # a guess of EOS would end every draft, so -1 repeats the token before it instead
        self._pad_id = -1 if pad_id in arrays.eos_ids else pad_id
        self._no_row = torch.zeros(0, dtype=INT, device=arrays.device)
        # on the device, because each number that a step makes there is a kernel
        self._eos = to_device(arrays.eos_ids, INT, arrays.device)
        self._survivors: Survivors | None = None  # of the step that has chosen

    def reserve(self, num_slots: int, width: int, length: int, num_nodes: int | None) -> None:
        # there is one hypothesis, whatever `num_nodes` is, and guesses may stand behind the longest one
        self._arrays.reserve(num_slots, width, length, num_nodes=length + 2 * width)
        self.drafts = self.drafts.reserved(num_slots, 0)

    def buffers(self) -> tuple[Tensor, ...]:
        return tuple(self.drafts)

    def open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        """See `BeamState.open`. On a GPU a source may have fewer rows than the result says."""
        arrays = self._arrays
        slots = [beam.slot for beam in beams]
        slot, lines = new_lines(arrays.device, slots, *arrays.new_lines(beams))
        self.drafts = self.drafts.reserved(0, max(len(beam.guesses) for beam in beams))
        draft_lines = []
        for beam in beams:
            guesses, algorithm = list(beam.guesses), beam.algorithm
            self.drafts.guess[beam.slot, : len(guesses)] = to_device(guesses, INT, arrays.device)
            assert algorithm.draft is not None and isinstance(algorithm.max_length, int)
            draft_lines.append(
                algorithm.draft.line(algorithm.max_length, len(guesses), self._pad_id)
            )
        ints = [[line[name] for name in DRAFT_COLUMNS] for line in draft_lines]
        arrays.backend.draft_open(
            arrays.tree.arrays,
            arrays.beams,
            self.drafts,
            slot,
            lines,
            to_device(ints, INT, arrays.device),
            self._tokens(start_id),
        )
        if arrays.device.type == "cpu":
            return arrays.beams.num_rows[torch.tensor(slots)].tolist()
        return [line["max_rows"] for line in draft_lines]

    def forget(self) -> None:
        """See `LiveArrays.forget`."""
        self._arrays.forget()
        is_empty = self._arrays.tree.num_pages == 0
        poison.forget([array[1:] for array in self.drafts], is_empty[1:])

    def _tokens(self, start_id: int = -1) -> DraftTokens:
        return DraftTokens(start_id, self._arrays.eos_ids[0], self._vocab_size)

    def position(self, read: RowArrays) -> Tensor:
        return read.depth + read.entry

    def wanted(self, rows: Rows, *, is_forced: bool) -> None:
        """All logits are."""

    def choose(self, rows: Rows, logits: Tensor) -> None:
        """Process the logits [R, V] of the rows, which may be overwritten, and choose each row's token."""
        self._survivors = self._selected(rows, self._processed(logits, rows))

    def _processed(self, logits: Tensor, rows: Rows) -> Tensor:
        chain = self._arrays.processors
        if not chain.has_state:
            return chain(logits, rows)
        # the state at a guess follows from the state at the guess before it: one after another
        num_rows = rows.token.numel()
        # a source that has no such row writes to the last one, which nobody reads
        result = logits.new_empty(num_rows + 1, logits.shape[1], dtype=chain.dtype(logits))
        for q in range(self._arrays.width_capacity):
            row = rows.offset[:-1] + q  # [A]
            is_one = row < rows.offset[1:]
            index = torch.where(is_one, row, 0)
            value = chain(logits.index_select(0, index), rows.take(index, is_one))
            result[torch.where(is_one, row, num_rows).long()] = value
        return result[:num_rows]

    def _selected(self, rows: Rows, logits: Tensor) -> Survivors:
        """The token that greedy decoding would select for every row: `Survivors` of R beams of one row."""
        beams, active, chain = self._arrays.beams, self._arrays.active, self._arrays.processors
        position, p = rows.position, rows.row_slot.long()
        score = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        offset = torch.arange(logits.shape[0] + 1, dtype=INT, device=logits.device)
        options = SelectOptions(
            capacity=1, eos_ids=self._arrays.eos_ids, normalise=chain.normalises
        )
        if active.min_length:
            options = options._replace(ban_eos=rows.num_generated < beams.min_length[p])
        given = beams.prefix[p, position.long().clamp(max=beams.prefix.shape[1] - 1)]
        is_forced = position < beams.scored_from[p]
        if active.prefix:
            options = options._replace(forced=torch.where(is_forced, given, -1))
        width = torch.ones_like(offset[1:])
        chosen = self._arrays.backend.select(logits, score, offset, width, options)
        if not active.target:
            return chosen
        is_target = ~is_forced & (position < beams.scored_from[p] + beams.target_length[p])
        return force(
            chosen,
            torch.where(is_target, given, -1),
            dataclasses.replace(rows, offset=offset),
            Entries(score, offset),
            logits,
            self._arrays.eos_ids[0],
            chain.normalises,
        )

    def commit(self, slot: Tensor, live: Tensor) -> Tensor:
        """Accept proven tokens, append them, stop, and guess the next rows of slots [A]."""
        arrays = self._arrays
        assert self._survivors is not None, "`commit` needs a `choose` before it"
        survivors, eos_token = with_one_eos(self._survivors, self._eos)
        self._survivors = None
        arrays.backend.draft_commit(
            arrays.tree.arrays,
            arrays.beams,
            self.drafts,
            slot,
            survivors,
            eos_token,
            self._tokens(),
        )
        return arrays.program.report(live)

    def moves(self) -> tuple[Tensor, Tensor]:
        return self._no_row, self._no_row

    def check(self) -> None:
        tree, beams = self._arrays.tree, self._arrays.beams
        pages = tree.free_page[: int(tree.num_free_pages)].tolist()
        for p in range(beams.num_rows.numel()):
            owned = tree.page[p, : int(tree.num_pages[p])].tolist()
            pages += owned
            if p == NULL_SLOT or not owned or int(beams.reason[p]) != RUNNING:
                assert not int(beams.num_rows[p]), f"slot {p} has rows and is not live"
                continue
            depth, n = int(beams.depth[p]), int(beams.num_rows[p])
            assert n >= 1 and beams.is_alive[p].tolist() == [
                q < n for q in range(self._arrays.width_capacity)
            ]
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
