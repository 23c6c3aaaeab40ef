"""`Step`: one step of some slots, from the rows that the model reads to the report on what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.arrays import PlanRules, SelectInputs
from pybeam.backends.beam_program import BeamProgram
from pybeam.backends.layer_program import LayerCall
from pybeam.contracts import SelectOptions, Survivors
from pybeam.models.rows import Rows
from pybeam.state.live_arrays import INT, LiveArrays

NOTHING = torch.zeros(0, dtype=INT)


class StepPlan(NamedTuple):
    """A step in numbers, which are all known before it begins."""

    slot: Tensor  # [A] int32, the slots that move; `NULL_SLOT` is padding
    num_rows: int | None  # rows that there is room for; None: as many as the schedule lets move
    longest: int  # most tokens of a row, start token included
    # whether the next token of every row is given, and nobody reads its logits
    is_forced: bool = False
    rules: PlanRules | None = None  # by which some of the slots move; None: all do


class Step:
    """A step of beams, whose rows compete. `choose` and `commit` follow in this order, each once.

    A step that was begun may be given up until it commits: no beam has changed.

    Attributes:
        rows: what the model is asked.
    """

    def __init__(
        self, arrays: LiveArrays, program: BeamProgram, rows: Rows, is_forced: bool
    ) -> None:
        self.rows = rows
        self._arrays, self._program = arrays, program
        active, chain, rule = arrays.active, arrays.processors, arrays.processors.rule
        # whether the step sees columns in place of the vocabulary; a target may be any token
        self._narrows = arrays.can_narrow and not active.target
        # whether something changes what the program has chosen
        is_given = active.target or (arrays.demotes and active.prefix)
        selects = rule is not None and rule.processor.acts_on_candidates
        self._adjusts = is_given or chain.perturbs or selects
        if self._narrows:
            rows.wanted = chain.wanted(rows)
        elif is_forced and not self._adjusts and arrays.skips_forced:
            rows.wanted = NOTHING

    @property
    def choice(self) -> tuple[SelectInputs, SelectOptions] | None:
        """What `select` is given beside the logits, where a model may call it by itself; else None."""
        changes = self._adjusts or self._arrays.algorithm.processors
        given = getattr(self._program, "choice", None)
        return None if changes or given is None or self.rows.wanted is not None else given()

    def choose(self, logits: Tensor | Survivors) -> None:
        """Process the logits [R, V] of the rows, which may be overwritten, and select the survivors.

        If a model has selected survivors by `choice`, go on with those.
        """
        if isinstance(logits, Survivors):
            return self._program.take(self.rows.slot, logits)
        chain = self._arrays.processors
        if self._arrays.algorithm.processors:
            logits = self._processed(logits)
        if self._adjusts:
            self._program.take(self.rows.slot, self.survivors(logits))
        elif chain.columns is None:
            self._program.choose(logits)
        else:
            self._program.choose(logits, chain.columns.tokens)

    def _processed(self, logits: Tensor) -> Tensor:
        chain = self._arrays.processors
        self.rows.inputs = None if chain.perturbs else self._program.inputs
        return chain(logits, self.rows, narrows=self._narrows)

    def survivors(self, logits: Tensor) -> Survivors:
        """Select apart from the program, so that targets, samplers or rules about EOS have a say."""
        # most steps do without
        from pybeam.state.apart import survivors_apart

        return survivors_apart(self._arrays, self._program.inputs(), self.rows, logits)

    def is_plain(self, slots: Sequence[int]) -> bool:
        """Whether the program can choose by itself, in this step of live slots and those after it."""
        if self._adjusts or self.rows.wanted is not None:
            return False
        return self._arrays.processors.is_known(slots, narrows=self._narrows)

    def go_on(
        self, call: LayerCall, live: Tensor, most: int, *ends: Tensor | float
    ) -> tuple[int, Tensor, tuple[float, ...]]:
        """Do this step, if it is plain, and those that follow. See `BeamProgram.run` for `ends`."""
        chain = self._arrays.processors
        columns = chain.step_columns(self.rows.eos_id) if self._narrows else None
        edits = chain.edits(narrows=self._narrows)
        return self._program.run(*call, edits, columns, live, most, *ends)

    def commit(self, live: Tensor) -> Tensor:
        """Make the survivors the beams of the slots. Returns the report on the slots `live` [A].

        Each of `live` is the slot that moves at its place, or stays as it is.
        """
        report, rule = self._program.commit(live), self._arrays.processors.rule
        if rule is None:
            return report
        own = self._arrays.beams, self.rows, rule.data(self.rows)
        return self._program.report(live) if rule.processor.stops_some(*own) else report

    def moves(self) -> tuple[Tensor, Tensor]:
        """Return the source and target entries [A * K] int32 of `commit`, for `Session.advance`."""
        return self._program.moves()
