"""`Step`: one step of some slots, from the rows that the model reads to the report on what became of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.state.beam_step import BeamStep
from pybeam.state.draft_step import DraftStep


class Step(NamedTuple):
    """What `BeamState.begin` returns. `choose` and `commit` follow in this order, each once.

    A step that was begun may be given up until it commits: no beam has changed.
    """

    slot: Tensor  # [A] int32, the slots that move; `NULL_SLOT` is padding
    rows: Rows  # what the model is asked
    kind: BeamStep | DraftStep

    def choose(self, logits: Tensor) -> None:
        """Process the logits [R, V] of the rows, which may be overwritten, and select the survivors."""
        self.kind.choose(self.rows, logits)

    def commit(
        self, live: Tensor, *, wants_moves: bool
    ) -> tuple[tuple[Tensor, Tensor] | None, Tensor]:
        """Make the survivors the beams of the slots, and report on the slots `live` [A].

        Each of `live` is the slot that moves at its place, or stays as it is. Returns source and target
        entries [A * K] int32 for `Session.advance`, if these are wanted, and the result of
        `BeamState.report`.
        """
        report = self.kind.commit(self.slot, live)
        return self.kind.moves() if wants_moves else None, report
