"""`BeamStep`: one step of beams, whose rows compete."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import (
    Beams,
    CommitRules,
    RowArrays,
    SelectInputs,
    TreeArrays,
)
from pybeam.backends.beam_program import BeamProgram, BeamRules
from pybeam.contracts import Finishing, SelectOptions, Survivors
from pybeam.models.rows import Rows
from pybeam.processors.chain import restore_log_probs
from pybeam.state.forced_decoding import demote_eos, force, next_forced, revive
from pybeam.state.live_arrays import INT, LiveArrays
from pybeam.state.new_beam import NewBeam

# every place in a beam may have one candidate that goes on, and one that finishes
REFILL_PER_PLACE = 2


class BeamStep:
    """Advance sources that have a beam each. `BeamState` describes the methods."""

    def __init__(self, arrays: LiveArrays) -> None:
        self._arrays = arrays
        algorithm, stop = arrays.algorithm, arrays.algorithm.stop
        self._finishing = algorithm.finishing
        self._program: BeamProgram | None = None
        # the arrays of the program
        self._bound: tuple[TreeArrays | None, Beams | None] = None, None
        self._make_program = None if arrays.processors.perturbs else arrays.backend.beam_program
        self._demotes = algorithm.prefix.leading_eos
        self._can_narrow = arrays.processors.can_narrow(arrays.eos_ids[0])
        self._rules = CommitRules(
            eos_id=arrays.eos_ids[0],
            finishing=int(algorithm.finishing),
            keeps_best=stop.keeps_best,
            top=int(stop.top),
            certificate=int(stop.certificate),
        )

    def reserve(self, num_slots: int, width: int, length: int, num_nodes: int | None) -> None:
        self._arrays.reserve(num_slots, width, length, num_nodes)

    def buffers(self) -> tuple[Tensor, ...]:
        return ()

    def forget(self) -> None:
        """See `LiveArrays.forget`."""
        self._arrays.forget()

    def open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        arrays = self._arrays
        lines = arrays.new_lines(beams)
        slots = [beam.slot for beam in beams]
        program = self.program()
        if program is not None:
            program.open(slots, *lines, start_id)
        else:
            slot, new = arrays.on_device(slots, *lines)
            arrays.backend.beam_open(arrays.tree.arrays, arrays.beams, slot, new, start_id)
        return [1] * len(beams)

    def program(self) -> BeamProgram | None:
        """All that a step does to beams, in one object; None if Python has something to do in between."""
        arrays = self._arrays
        make, uses = self._make_program, arrays.uses
        if make is None or self._narrows or uses.target or (self._demotes and uses.prefix):
            return None
        tree, beams = arrays.tree.arrays, arrays.beams
        if self._bound[0] is not tree or self._bound[1] is not beams:
            refills, normalises = arrays.algorithm.refills, arrays.processors.normalises
            rules = BeamRules(arrays.eos_ids, *self._rules[1:], refills, normalises)
            self._program, self._bound = make(tree, beams, rules), (tree, beams)
        return self._program

    def position(self, read: RowArrays) -> Tensor:
        return read.depth

    @property
    def _narrows(self) -> bool:
        """Whether steps see columns in place of the vocabulary. A target may be any token."""
        return self._can_narrow and not self._arrays.uses.target

    def wanted(self, rows: Rows) -> Tensor | None:
        """The tokens [U] whose logits the step reads; None: all."""
        return self._arrays.processors.wanted(rows) if self._narrows else None

    def process(self, logits: Tensor, rows: Rows) -> Tensor:
        return self._arrays.processors(logits, rows, narrows=self._narrows)

    def select(self, rows: Rows, inputs: SelectInputs, logits: Tensor) -> Survivors:
        arrays = self._arrays
        uses, chain = arrays.uses, arrays.processors
        target, score = None, inputs.score
        if uses.target:
            target = next_forced(arrays.beams, rows.slot)
            score = revive(score, inputs.offset, target)
        options, columns = self._options(inputs), chain.columns
        if target is not None and options.ban_eos is not None:
            # the target's token has its log-prob from the best one, which may be EOS
            options = options._replace(ban_eos=options.ban_eos & (target < 0))
        forced = options.forced
        if columns is not None:
            options = options._replace(eos_ids=(columns.eos_column,))
            if forced is not None:
                place = torch.where(forced >= 0, columns.other_column, -1).to(INT)
                options = options._replace(forced=place)
        chosen = arrays.backend.select(logits, score, inputs.offset, inputs.width, options)
        if columns is not None:
            chosen = columns.survivors(chosen, rows, arrays.beams.is_alive, forced)
        if self._demotes and (uses.prefix or uses.target):
            chosen = demote_eos(chosen, arrays.beams, rows.slot, inputs.width)
        log_probs = chain.log_probs if chain.perturbs else None
        if log_probs is not None:
            is_alive = arrays.beams.is_alive
            chosen = restore_log_probs(arrays.backend, chosen, rows, is_alive, log_probs)
        if target is None:
            return chosen
        eos_id = arrays.eos_ids[0]
        return force(chosen, target, rows, inputs, logits, eos_id, chain.normalises, log_probs)

    def _options(self, inputs: SelectInputs) -> SelectOptions:
        uses = self._arrays.uses
        is_held = self._finishing == Finishing.HELD
        per_place = REFILL_PER_PLACE if self._finishing == Finishing.REFILL else 1
        return SelectOptions(
            capacity=self._arrays.width_capacity * per_place,
            eos_ids=self._arrays.eos_ids,
            finishing=self._rules.finishing,
            normalise=self._arrays.processors.normalises,
            is_ended=inputs.is_ended if is_held else None,
            max_candidates=inputs.max_candidates if uses.max_candidates else None,
            margin=inputs.margin if uses.margin else None,
            local_margin=inputs.local_margin if uses.local_margin else None,
            best_finished=inputs.best_finished if is_held and uses.margin else None,
            forced=inputs.forced if uses.prefix else None,
            ban_eos=inputs.ban_eos if uses.min_length else None,
        )

    def commit(self, slot: Tensor, survivors: Survivors) -> tuple[Tensor, Tensor]:
        arrays = self._arrays
        survivors, eos_token = arrays.with_one_eos(survivors)
        return arrays.backend.beam_commit(
            arrays.tree.arrays, arrays.beams, slot, survivors, eos_token, self._rules
        )

    def commit_and_report(
        self, slot: Tensor, live: Tensor, survivors: Survivors
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        arrays, backend = self._arrays, self._arrays.backend
        if backend.commit_and_report is None:
            return self.commit(slot, survivors), self.report(live)
        survivors, eos_token = arrays.with_one_eos(survivors)
        source, target, report = backend.commit_and_report(
            arrays.tree.arrays, arrays.beams, slot, live, survivors, eos_token, self._rules
        )
        return (source, target), report

    def report(self, slot: Tensor) -> Tensor:
        arrays = self._arrays
        return arrays.backend.beam_report(arrays.tree.arrays, arrays.beams, slot)

    def check(self) -> None:
        tree, beams = self._arrays.tree, self._arrays.beams
        tree.check()
        for p in range(beams.num_entries.numel()):
            alive, n = beams.is_alive[p].tolist(), int(beams.num_entries[p])
            assert not any(alive[n:]), f"slot {p} has rows behind its last entry"
            assert sum(alive) == int(beams.num_rows[p]), f"slot {p} counts its rows wrongly"
            score = beams.score[p, :n].tolist()
            assert score == sorted(score, reverse=True), f"slot {p} is out of order"
            nodes = tree.row_node[p, :n].tolist()
            assert all(0 <= node < int(tree.num_nodes[p]) for node in nodes)
