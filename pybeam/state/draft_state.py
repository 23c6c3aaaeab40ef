"""The state of sources whose steps draft and verify: what `BeamState` does, for paths instead of beams.

The loop, sessions, processors and schedules are those of beams. Where a beam has rows that compete, a
source here has its last token and guesses of those behind it, each the child of the one before: the tree
is a path, and the masks that say which rows see a node are a staircase. `select` decides for every row
as it does for greedy decoding; `draft_commit` keeps what is proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import DRAFT_COLUMNS, NULL_SLOT, RUNNING, Drafts, Moving
from pybeam.backends.transfer import to_device
from pybeam.contracts import PAGE_CELLS, Finishing, Survivors
from pybeam.models.rows import Rows
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import INT, BeamState
from pybeam.state.forced_decoding import followed
from pybeam.state.new_beam import NewBeam


class DraftState(BeamState):
    """The one hypothesis of every live source, and what is guessed of it.

    Attributes:
        drafts: arrays of what is guessed, see `Drafts`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        eos_ids: tuple[int, ...],
        backend,
        device: torch.device,
        *,
        vocab_size: int,
        pad_id: int,
    ) -> None:
        super().__init__(algorithm, eos_ids, backend, device)
        self.drafts = Drafts.empty(device)
        self._vocab_size = vocab_size
        # a guess of EOS would end every draft; -1 repeats the token before
        self._pad_id = -1 if pad_id in eos_ids else pad_id
        self._singles: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._no_row = torch.zeros(0, dtype=INT, device=device)

    def reserve(self, num_slots: int, width: int, length: int) -> None:
        # the width more is what guesses may stand behind the longest hypothesis
        self.tree.reserve(num_slots, width, length, num_nodes=length + 2 * width)
        self.beams = self.beams.reserved(num_slots, width, prefix=1)
        self.drafts = self.drafts.reserved(num_slots, 0)
        self._processing.reserve(*self.tree.token.shape)

    def buffers(self) -> tuple[Tensor, ...]:
        return *super().buffers(), *self.drafts

    def _open(
        self, beams: Sequence[NewBeam], ints: Tensor, floats: Tensor, start_id: int
    ) -> list[int]:
        slots = [beam.slot for beam in beams]
        self.drafts = self.drafts.reserved(0, max(len(beam.guesses) for beam in beams))
        lines = []
        for beam in beams:
            tokens, own = list(beam.guesses), beam.algorithm
            self.drafts.guess[beam.slot, : len(tokens)] = to_device(tokens, INT, self.device)
            lines.append(own.draft.line(own.max_length, len(tokens), self._pad_id))
        self._backend.draft_open(
            self.tree.arrays,
            self.beams,
            self.drafts,
            to_device(slots, INT, self.device),
            ints,
            floats,
            to_device([[line[name] for name in DRAFT_COLUMNS] for line in lines], INT, self.device),
            start_id,
            self.eos_ids[0],
            self._vocab_size,
        )
        if self.device.type == "cpu":
            return self.beams.num_rows[torch.tensor(slots)].tolist()
        return [line["max_rows"] for line in lines]

    def _position(self, depth: Tensor, bit: Tensor) -> Tensor:
        return depth + bit

    def process(self, logits: Tensor, rows: Rows) -> Tensor:
        if not self._processing.has_state:
            return self._processing(logits, rows)
        # what a state is at a guess follows from that at the one before
        result = logits.new_empty(logits.shape, dtype=self._processing.dtype(logits))
        last = max(rows.token.numel() - 1, 0)
        for q in range(self.width_capacity):
            index = (rows.offset[:-1] + q).clamp(max=last)  # [A]
            is_one = rows.offset[:-1] + q < rows.offset[1:]
            part = rows.picked(index, is_one)
            value = self._processing(logits.index_select(0, index), part)
            old = result.index_select(0, index)
            result[index.long()] = torch.where(is_one[:, None], value, old)
        return result

    def select(self, rows: Rows, moving: Moving, logits: Tensor) -> Survivors:
        """What greedy decoding would select for every row alone: `Survivors` of R beams of one row."""
        beams, position, p = self.beams, rows.position, rows.row_slot.long()
        score, offset, width = self._single(logits.shape[0])
        forced = ban_eos = None
        if self._uses_min_length:
            ban_eos = rows.num_generated < beams.min_length[p]
        if self._uses_prefix or self._uses_target:
            given = beams.prefix[p, position.long().clamp(max=beams.prefix.shape[1] - 1)]
            is_prefix = position < beams.scored_from[p]
            forced = torch.where(is_prefix, given, -1)
        chosen = Survivors(
            *self._backend.select(
                logits,
                score,
                offset,
                width,
                None,
                None,
                None,
                None,
                None,
                forced,
                ban_eos,
                self.eos_ids,
                int(Finishing.NONE),
                1,
                self._processing.normalises,
            )
        )
        if not self._uses_target:
            return chosen
        is_target = ~is_prefix & (position < beams.scored_from[p] + beams.target_length[p])
        alone = dataclasses.replace(rows, offset=offset)
        return followed(
            chosen,
            torch.where(is_target, given, -1),
            alone,
            moving._replace(score=score, offset=offset),
            logits,
            self.eos_ids[0],
            self._processing.normalises,
        )

    def _single(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, offsets and widths of so many beams of one row."""
        if num_rows not in self._singles:
            self._singles[num_rows] = (
                torch.zeros(num_rows, device=self.device),
                torch.arange(num_rows + 1, dtype=INT, device=self.device),
                torch.ones(num_rows, dtype=INT, device=self.device),
            )
        return self._singles[num_rows]

    def commit(self, slot: Tensor, survivors: Survivors) -> tuple[Tensor, Tensor]:
        """Accept what is proven, append, stop and guess again: the next rows of slots [A]."""
        survivors, raw = self._with_one_eos(survivors)
        self._backend.draft_commit(
            self.tree.arrays,
            self.beams,
            self.drafts,
            slot,
            survivors.token,
            survivors.log_prob,
            survivors.has_nan,
            raw,
            self.eos_ids[0],
            self._vocab_size,
        )
        return self._no_row, self._no_row

    def check(self) -> None:
        tree, beams = self.tree, self.beams
        pages = tree.free_page[: int(tree.num_free_pages)].tolist()
        for p in range(beams.num_rows.numel()):
            owned = tree.page[p, : int(tree.num_pages[p])].tolist()
            pages += owned
            if p == NULL_SLOT or not owned or int(beams.reason[p]) != RUNNING:
                assert not int(beams.num_rows[p]), f"slot {p} has rows and is not live"
                continue
            depth, n = int(beams.depth[p]), int(beams.num_rows[p])
            assert n >= 1 and beams.is_alive[p].tolist() == [
                q < n for q in range(self.width_capacity)
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
