"""`BeamProgram`: the one way in which a step reads, selects and commits beams, whatever the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from pybeam.backends.arrays import NO_LIMIT, PlanRules, RowArrays
from pybeam.backends.layer_program import LayerProgram
from pybeam.contracts import ColumnTokens, EditList, Survivors

INF = float("inf")


class BeamRules(NamedTuple):
    """The rules of an algorithm that a step needs."""

    eos_ids: tuple[int, ...]
    finishing: int
    keeps_best: bool  # this and the next two are those of `Stop`
    top: int
    certificate: int
    refills: bool  # whether others take the places of finished hypotheses
    normalise: bool  # whether `select` is given logits, and not log-probabilities


@dataclass
class ActiveRules:
    """Rules that some source has used so far. `select` can ignore the others."""

    prefix: bool = False
    target: bool = False
    min_length: bool = False
    max_candidates: bool = False
    margin: bool = False
    local_margin: bool = False

    def note(self, columns: dict[str, float]) -> None:
        """Note the rules of a source that is opened with these columns."""
        self.prefix |= columns["scored_from"] > 0
        self.target |= columns["target_length"] > 0
        self.min_length |= columns["min_length"] > 0
        self.max_candidates |= columns["max_candidates"] < NO_LIMIT
        self.margin |= columns["margin"] < INF
        self.local_margin |= columns["local_margin"] < INF


class BeamProgram(Protocol):
    """All that is done to the beams of some arrays by some rules, in one object.

    `read`, `choose` and `commit` are a step but for the model. Each goes on from the one before.
    """

    def open(
        self, slots: list[int], ints: list[int], floats: list[float], start_id: int, /
    ) -> None:
        """Start one beam of one row, the start token, in each of these empty slots [A].

        The lines of slots, as in `NewLines`, stand one after another.
        """

    def read(self, slot: Tensor, num_rows: int, /) -> Sequence[Tensor]:
        """Read the rows of slots [A] that move. Returns the tensors of `RowArrays`.

        There is room for `num_rows` rows. The rest is padding: rows of slot 0 whose cell is -1. Tensors that
        nobody holds any more may be used again in the next call.
        """

    def plan_and_read(
        self, slot: Tensor, num_rows: int, rules: PlanRules, /
    ) -> tuple[Tensor, RowArrays]:
        """`torch_plan.planned` and `read`, where a backend `plans_as_it_reads`. Returns the slots, too."""

    def inputs(self) -> Sequence[Tensor]:
        """The tensors of `SelectInputs` of the beams that were read."""

    def choose(self, logits: Tensor, columns: ColumnTokens | None = None, /) -> None:
        """Select the survivors of the beams that were read, by their logits [R, V]. It changes no beam.

        With `columns`, logits [R, M + 1] are those of columns, and survivors have the tokens of theirs.
        """

    def take(self, slot: Tensor, survivors: Survivors, /) -> None:
        """Go on with these survivors of slots [A], which somebody else has selected. It changes no beam."""

    def commit(self, live: Tensor, /) -> Tensor:
        """Make the survivors the next beams: finish, append and stop. Returns the `report` on `live`."""

    # the first two are a `LayerCall`, the third is what `ProcessorChain.edits` returns
    def run(
        self,
        layers: LayerProgram,
        given: tuple[Any, ...],
        edits: tuple[EditList, Tensor],
        columns: Any,  # `StepColumns` of `torch_automata`, or None
        live: Tensor,
        most: int,
        *ends: Tensor | float,  # `now`, `soon` and `patience`
    ) -> tuple[int, Tensor, tuple[float, ...]]:
        """Do the step of the beams that were read, and up to `most` steps of slots `live` [A] in all.

        They are what a decoder's call, `edit_logits`, `choose` and `commit` do, without Python and its lock.
        With `columns`, a catalogue's operators make the columns that `choose` is given. They end when pages
        or rows of `out` are missing, when another thread has set `now` [1] bool, or after 50 ms, for signals;
        and, from `patience` seconds on, when a slot has stopped or `soon` [1] bool is set. `out` has no
        meaning then. Returns the number of steps that were done, the `report` on `live`, and the seconds of
        reading, layers and choice, and commit. A step that raises before it commits is not done.
        """

    def moves(self) -> tuple[Tensor, Tensor]:
        """Return source and target entries [A * K] int32 of the last commit, for `Session.advance`."""

    def report(self, slot: Tensor, /) -> Tensor:
        """Return the number of free pages, then for each slot the columns up to `NUM_REPORTED` and its pages.

        The result is [1 + A * (NUM_REPORTED + 1)] int32.
        """

    def finished(
        self, slots: list[int], counts: list[int], capacity: int, wants_log_probs: bool, /
    ) -> Tensor:
        """The finished hypotheses of slots [A], see `BeamState.finished`."""

    def close(self, slots: list[int], /) -> None:
        """Empty these slots and give their pages back."""
