"""`DraftState`: sources that draft and verify, with paths instead of beams.

The loop, sessions, processors and schedules are those of beams. The rows of a beam compete. Here the rows of
a source are its last token and guesses of the tokens behind it, each the child of the one before. The tree
is a path, and the masks that say which rows see a node are a staircase. `select` decides for every row as in
greedy decoding, and a commit keeps the tokens that are proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import DRAFT_COLUMNS, FILL_LAST, Drafts
from pybeam.backends.tensor_beams import given_tokens, select_rows
from pybeam.backends.transfer import all_to_device
from pybeam.contracts import Survivors
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState
from pybeam.state.forced_decoding import Entries, force
from pybeam.state.live_arrays import INT
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import Step


class DraftStep(Step):
    """A step of sources that have one hypothesis each."""

    def _processed(self, logits: Tensor) -> Tensor:
        chain = self._arrays.processors
        if not chain.has_state:
            return chain(logits, self.rows)
        # the state at a guess follows from the state at the guess before it: one after another
        rows = self.rows
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

    def survivors(self, logits: Tensor) -> Survivors:
        """Select apart from the program, so that targets have a say."""
        arrays, rows, position = self._arrays, self.rows, self.rows.position
        beams, p = arrays.beams, rows.row_slot.long()
        given = beams, arrays.rules, arrays.active, rows.row_slot, position
        chosen = select_rows(arrays.backend.select, *given, logits)
        begin = beams.scored_from[p]
        is_target = (position >= begin) & (position < begin + beams.target_length[p])
        offset = torch.arange(len(logits) + 1, dtype=INT, device=logits.device)
        return force(
            chosen,
            torch.where(is_target, given_tokens(beams, p, position), -1),
            dataclasses.replace(rows, offset=offset),
            Entries(logits.new_zeros(len(logits), dtype=torch.float32), offset),
            logits,
            arrays.processors.normalises,
        )


class DraftState(BeamState):
    """`BeamState` of an algorithm that guesses tokens ahead.

    Args:
        vocab_size, pad_id: those of the model.

    Attributes:
        reads_ahead: False, because guesses stand where a prefix would be read.
    """

    step = DraftStep
    reads_ahead = False
    drafts: Drafts

    def __init__(
        self,
        algorithm: Algorithm,
        eos_ids: tuple[int, ...],
        backend: Backend,
        device: torch.device,
        *,
        vocab_size: int,
        pad_id: int = -1,
    ) -> None:
        assert vocab_size > 0, "guesses must be tokens of a vocabulary"
        super().__init__(algorithm, eos_ids, backend, device)
        # all logits are read
        self.can_narrow = self.skips_forced = False
        self.vocab_size, self.drafts = vocab_size, Drafts.empty(device)
        # a guess of EOS would end every draft, so the token before it is repeated instead
        self._pad_id = FILL_LAST if pad_id in eos_ids else pad_id

    def grow(self, num_slots: int, width: int, length: int, num_nodes: int | None) -> None:
        # there is one hypothesis, whatever `num_nodes` is, and guesses may stand behind the longest one
        super().grow(num_slots, width, length, length + 2 * width)
        self.drafts = self.drafts.reserved(num_slots, 0)

    def _open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        """See `BeamState.open`. On a GPU a source may have fewer rows than the result says."""
        slots = [beam.slot for beam in beams]
        lines, num = self.new_lines(beams), len(DRAFT_COLUMNS)
        longest = max(len(beam.guesses) for beam in beams)
        self.drafts = self.drafts.reserved(0, longest)
        given = np.zeros((len(beams), num + longest), dtype=np.int32)
        for own, beam in zip(given, beams, strict=True):
            draft, max_length = beam.algorithm.draft, beam.algorithm.max_length
            assert draft is not None and isinstance(max_length, int)
            line = draft.line(max_length, len(beam.guesses), self._pad_id)
            own[: num + len(beam.guesses)] = [*map(line.__getitem__, DRAFT_COLUMNS), *beam.guesses]
        places, columns = all_to_device((slots, given), self.device)
        index = places.long()
        self.drafts.ints.index_copy_(0, index, columns[:, :num])
        if longest:
            self.drafts.guess[:, :longest].index_copy_(0, index, columns[:, num:])
        self.program.open(slots, *lines, start_id)
        if self.device.type == "cpu":
            return self.beams.num_rows[index].tolist()
        return given[:, DRAFT_COLUMNS.index("max_rows")].tolist()
