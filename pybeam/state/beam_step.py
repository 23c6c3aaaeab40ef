"""`BeamStep`: one step of beams, whose rows compete."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import RowArrays, SelectInputs
from pybeam.backends.tensor_beams import select_options
from pybeam.contracts import Survivors
from pybeam.models.rows import Rows
from pybeam.processors.chain import restore_log_probs
from pybeam.state.forced_decoding import Entries, demote_eos, force, next_forced, revive
from pybeam.state.live_arrays import INT, LiveArrays
from pybeam.state.new_beam import NewBeam

NOTHING = torch.zeros(0, dtype=INT)


class BeamStep:
    """Advance sources that have a beam each. `BeamState` describes the methods."""

    def __init__(self, arrays: LiveArrays) -> None:
        self._arrays = arrays
        self._demotes = arrays.algorithm.prefix.leading_eos
        self._can_narrow = arrays.processors.can_narrow(arrays.eos_ids[0])

    def reserve(self, num_slots: int, width: int, length: int, num_nodes: int | None) -> None:
        self._arrays.reserve(num_slots, width, length, num_nodes)

    def buffers(self) -> tuple[Tensor, ...]:
        return ()

    def forget(self) -> None:
        """See `LiveArrays.forget`."""
        self._arrays.forget()

    def open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        lines = self._arrays.new_lines(beams)
        self._arrays.program.open([beam.slot for beam in beams], *lines, start_id)
        return [1] * len(beams)

    def position(self, read: RowArrays) -> Tensor:
        return read.depth

    @property
    def _narrows(self) -> bool:
        """Whether steps see columns in place of the vocabulary. A target may be any token."""
        return self._can_narrow and not self._arrays.active.target

    @property
    def _adjusts(self) -> bool:
        """Whether something changes what `select` is given, or what it has chosen."""
        active, chain = self._arrays.active, self._arrays.processors
        is_given = active.target or (self._demotes and active.prefix)
        return is_given or self._narrows or chain.perturbs

    def wanted(self, rows: Rows, *, is_forced: bool) -> Tensor | None:
        """The tokens [U] whose logits the step reads; None: all."""
        if self._narrows:
            return self._arrays.processors.wanted(rows)
        skips = is_forced and self._arrays.backend.skips_forced_logits and not self._adjusts
        return NOTHING if skips else None

    def choose(self, rows: Rows, logits: Tensor) -> None:
        """Process the logits [R, V] of the rows, which may be overwritten, and select the survivors."""
        logits = self._processed(logits, rows)
        if self._adjusts:
            self._arrays.program.take(rows.slot, self.survivors(rows, logits))
        else:
            self._arrays.program.choose(logits)

    def _processed(self, logits: Tensor, rows: Rows) -> Tensor:
        return self._arrays.processors(logits, rows, narrows=self._narrows)

    def survivors(self, rows: Rows, logits: Tensor) -> Survivors:
        """Select apart from the program, so that targets, columns, samplers or rules about EOS have a say."""
        arrays, inputs = self._arrays, SelectInputs(*self._arrays.program.inputs())
        active, chain = arrays.active, arrays.processors
        target, score = None, inputs.score
        if active.target:
            target = next_forced(arrays.beams, rows.slot)
            score = revive(score, inputs.offset, target)
        options = select_options(arrays.rules, active, inputs, arrays.width_capacity)
        columns = chain.columns
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
        if self._demotes and (active.prefix or active.target):
            chosen = demote_eos(chosen, arrays.beams, rows.slot, inputs.width)
        log_probs = chain.log_probs if chain.perturbs else None
        if log_probs is not None:
            is_alive = arrays.beams.is_alive
            chosen = restore_log_probs(arrays.backend, chosen, rows, is_alive, log_probs)
        if target is None:
            return chosen
        entries, eos_id = Entries(inputs.score, inputs.offset), arrays.eos_ids[0]
        return force(chosen, target, rows, entries, logits, eos_id, chain.normalises, log_probs)

    def commit(self, slot: Tensor, live: Tensor) -> Tensor:
        return self._arrays.program.commit(live)

    def moves(self) -> tuple[Tensor, Tensor]:
        return self._arrays.program.moves()

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
