"""The state of all live sources: beams, finished hypotheses, limits, and the token tree.

Every array has one line per slot. The loop moves rows in two ways: `Step.commit` ends a step of sources, and
`BeamState.close` ends the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.backends import poison
from pybeam.backends.arrays import PlanRules, RowArrays
from pybeam.backends.torch_plan import Choose, planned
from pybeam.backends.transfer import to_device
from pybeam.models.rows import Rows
from pybeam.state.live_arrays import INT, LiveArrays
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import Step, StepPlan


class BeamState(LiveArrays):
    """The beams of all live sources, and the operations on them.

    `DraftState` is the same for an algorithm that guesses tokens ahead.
    """

    step: ClassVar[type[Step]] = Step

    @property
    def prefix_reach(self) -> int | None:
        """See `ProcessorChain`."""
        return self.processors.prefix_reach

    @property
    def reads_ahead(self) -> bool:
        """Whether beams may take tokens of a prefix at once. State of processors goes from token to token."""
        return self.prefix_reach is not None and not self.processors.has_state

    def reserve(
        self, num_slots: int, width: int, length: int, num_nodes: int | None = None
    ) -> None:
        """Make room for that many slots, entries per beam, tokens per hypothesis and nodes per slot.

        `num_nodes` None: as many as a beam of that width and length may need. If there is no memory, all is
        as before.
        """
        owners = self, self.tree
        before = [dict(vars(owner)) for owner in owners]
        try:
            self.grow(num_slots, width, length, num_nodes)
        except BaseException:
            # some arrays have grown, into new tensors, and they must all agree
            for owner, attributes in zip(owners, before, strict=True):
                vars(owner).update(attributes)
            raise
        # tokens of prefixes are read before the first step begins
        if poison.IS_ON:
            self.forget()

    @property
    def options(self) -> tuple[int, ...]:
        """The rules, and the room for tokens, that a captured step has as constants beside its arrays."""
        return *vars(self.active).values(), self.can_narrow, self.tree.length

    def open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        """Start these beams, each with one row, the start token, in an empty slot.

        A scored prefix is a target from which the search goes on. Returns the most rows that each begins
        with.
        """
        num_rows = self._open(beams, start_id)
        own = [beam for beam in beams if beam.start is not None]
        if own:
            device = self.tree.token.device
            slot = to_device([beam.slot for beam in own], torch.long, device)
            self.tree.token[slot, 0] = to_device([beam.start for beam in own], INT, device)
        return num_rows

    def _open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        lines = self.new_lines(beams)
        self.program.open([beam.slot for beam in beams], *lines, start_id)
        return [1] * len(beams)

    def read_ahead(self, beams: Sequence[NewBeam], start_id: int) -> Iterator[Rows]:
        """Let beams that have just been opened take the first `num_read` tokens of their prefixes.

        Yields the rows of these tokens, for `Session.read`.
        """
        # few sources have a prefix that is worth it
        from pybeam.state.reading import rows_of, take_tokens

        assert self.reads_ahead
        take_tokens(self, beams)
        return rows_of(self, beams, start_id)

    def begin(self, plan: StepPlan) -> Step:
        """Read the rows of the slots of this plan [A], one beam after another, and begin a step of them."""
        program, slot = self.program, plan.slot
        if poison.IS_ON:
            self.forget()
        assert plan.num_rows is not None, "the schedule has not chosen who moves"
        if plan.rules is None:
            read = RowArrays(*program.read(slot, plan.num_rows))
        else:
            slot, read = program.plan_and_read(slot, plan.num_rows, plan.rules)
        rows = self.rows(slot, read, plan.longest)
        if self.drafts is None:
            self.processors.begin(rows)
        return self.step(self, program, rows, plan.is_forced)

    def plan(self, plan: StepPlan, rules: PlanRules | Choose) -> StepPlan:
        """Choose who moves among the slots of a plan, as `Schedule.plan` does, or leave it to `begin`."""
        is_sized = plan.num_rows is not None
        if is_sized and isinstance(rules, PlanRules) and self.backend.plans_as_it_reads:
            return plan._replace(rules=rules)
        slot, rows_of = planned(self.beams, plan.slot, rules)
        return plan._replace(slot=slot, num_rows=plan.num_rows if is_sized else int(rows_of.sum()))

    def report(self, slot: Tensor) -> Tensor:
        """The numbers of these slots [A] that the host needs; `Report.of` reads a copy of them."""
        return self.program.report(slot)

    def finished(
        self,
        slots: Sequence[int],
        counts: Sequence[int],
        capacity: int,
        *,
        wants_log_probs: bool,
    ) -> Tensor:
        """The finished hypotheses of these slots, `counts` of each, in the order in which they are kept.

        `capacity` is at least the tokens of the longest one, start included. `FinishedHypothesis.parse`
        reads a copy. A captured call has other lines behind them, which mean nothing.
        """
        return self.program.finished(list(slots), list(counts), capacity, wants_log_probs)

    def cut(self, slots: Sequence[int], capacity: int, *, wants_log_probs: bool) -> Tensor:
        """The best rows of these slots, as `finished` would return them if they were cut now."""
        # few sources must leave early
        from pybeam.backends.tensor_beams import traced
        from pybeam.backends.torch_beams import final_score

        owner, beams = to_device(slots, torch.long, self.device), self.beams
        score, none = beams.score[owner, :1], torch.full_like(owner, -1, dtype=INT)  # [n, 1], [n]
        length = beams.depth[owner] - beams.scored_from[owner]
        counted = length + beams.cut_length_offset[owner]
        final = final_score(beams, owner, score, counted[:, None])
        ints = torch.stack((self.tree.row_node[owner, 0], length, none), 1)
        floats = torch.cat((score, torch.zeros_like(score), final), 1)
        backtrace, tree = self.backend.backtrace, self.tree.arrays
        return traced(backtrace, tree, owner.to(INT), ints, floats, capacity, wants_log_probs)

    def close(self, slots: Sequence[int]) -> None:
        """Empty these slots and give their pages back."""
        self.program.close(list(slots))
        self.processors.close(slots)
