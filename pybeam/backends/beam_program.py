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
    """A step of beams but for the model, in one object: `beam_read`, `select` and `beam_commit`.

    It belongs to the arrays and the rules that it was made with. Each call goes on from the one before.
    """

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
