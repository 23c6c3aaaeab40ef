"""`BeamProgram`: a step of beams in one object, for backends that have it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class BeamRules(NamedTuple):
    """The rules of an algorithm that a whole step needs; see `CommitRules` for the first ones."""

    eos_ids: tuple[int, ...]
    finishing: int
    keeps_best: bool
    top: int
    certificate: int
    refills: bool  # whether others take the places of finished hypotheses
    normalise: bool  # whether `select` is given logits, and not log-probabilities


class BeamProgram(Protocol):
    """All that is done to the beams of some arrays by some rules, in one object.

    `read`, `choose` and `commit` are a step but for the model. Each goes on from the one before.
    """

    def open(
        self, slots: list[int], ints: list[int], floats: list[float], start_id: int, /
    ) -> None:
        """Open beams, as `Backend.beam_open` does. The lines of slots [A] stand one after another."""

    def read(self, slot: Tensor, num_rows: int, /) -> tuple[Tensor, ...]:
        """Read the rows of slots [A], as `Backend.beam_read` does. Returns the tensors of `RowArrays`.

        Tensors that nobody holds any more are used again in the next call.
        """

    def choose(self, logits: Tensor, /) -> None:
        """Select the survivors of the beams that were read, by their logits [R, V]. It changes nothing."""

    def commit(self) -> None:
        """Make these survivors the next beams, as `Backend.beam_commit` does."""

    def moves(self) -> tuple[Tensor, Tensor]:
        """Return source and target entries [A * K] int32 of the last commit."""

    def report(self, slot: Tensor, /) -> Tensor:
        """The numbers of slots [A] that the host needs, see `BeamState.report`."""

    def finished(
        self, slots: list[int], counts: list[int], capacity: int, wants_log_probs: bool, /
    ) -> Tensor:
        """The finished hypotheses of slots [A], see `BeamState.finished`."""

    def close(self, slots: list[int], /) -> None:
        """Empty these slots, as `Backend.beam_close` does."""
