"""The state of all live sources: beams, finished hypotheses, limits, and the token tree.

Every array has one line per slot. Exactly two methods move rows: `commit` after a selection and
`close` when sources are done; `check` asserts the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import (
    FLOAT_COLUMNS,
    INT_COLUMNS,
    NULL_SLOT,
    NUM_REPORTED,
    RUNNING,
    Beams,
    Moving,
)
from pybeam.backends.transfer import to_device
from pybeam.contracts import Finishing, Survivors
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.processors.chain import Processing, unperturbed
from pybeam.search.algorithms import Algorithm
from pybeam.state.forced_decoding import followed, led, next_target, startable
from pybeam.state.new_beam import NewBeam
from pybeam.state.report import FinishedArrays

INF = float("inf")
INT = torch.int32
NO_LIMIT = torch.iinfo(INT).max


class BeamState:
    """The beams of all live sources and what may be done to them.

    Attributes:
        beams: their arrays, see `Beams`.
        tree: the token tree.
        width_capacity: entries that every beam has room for.
    """

    def __init__(
        self, algorithm: Algorithm, eos_ids: tuple[int, ...], backend, device: torch.device
    ) -> None:
        self.algorithm, self.eos_ids, self.device = algorithm, eos_ids, device
        self._backend = backend
        self._finishing = int(algorithm.finishing)
        self.tree = TokenTree(backend, device)
        # one column at least, so that there is something to gather
        self.beams = Beams.empty(device).reserved(0, 0, prefix=1)
        self._processing = Processing(algorithm.processors, device)
        self._uses_prefix = self._uses_min_length = self._uses_limit = False
        self._uses_margin = self._uses_local_margin = self._uses_target = False

    @property
    def width_capacity(self) -> int:
        return self.beams.score.shape[1]

    def reserve(self, num_slots: int, width: int, length: int) -> None:
        """Make room for that many slots, entries per beam and tokens per hypothesis."""
        self.tree.reserve(num_slots, width, length)
        self.beams = self.beams.reserved(num_slots, width, prefix=1)
        self._processing.reserve(*self.tree.token.shape)

    def buffers(self) -> tuple[Tensor, ...]:
        """All arrays as they are now; a captured step refers to them."""
        return *self.tree.arrays, *self.beams, *self._processing.buffers()

    @property
    def options(self) -> tuple:
        """What is a constant to a step of this state beside the sizes of its arguments."""
        uses = self._uses_prefix, self._uses_min_length, self._uses_limit
        return *uses, self._uses_margin, self._uses_local_margin, self._uses_target

    def open(self, beams: Sequence[NewBeam], start_id: int) -> list[int]:
        """Start these beams, each with one row, the start token, in an empty slot.

        A scored prefix is a target that the search goes on from. Returns how many rows each begins with,
        at most.
        """
        slots = [beam.slot for beam in beams]
        self._open_given(slots, [(*beam.prefix, *beam.target) for beam in beams])
        processors = [beam.algorithm.processors for beam in beams]
        self._processing.open(slots, processors, [beam.prompt for beam in beams])
        lines = [
            _line(beam.algorithm, len(beam.prefix), len(beam.target), beam.source_length)
            for beam in beams
        ]
        for line in lines:
            self._uses_prefix |= line["scored_from"] > 0
            self._uses_target |= line["target_length"] > 0
            self._uses_limit |= line["max_candidates"] < NO_LIMIT
            self._uses_margin |= line["margin"] < INF
            self._uses_local_margin |= line["local_margin"] < INF
            self._uses_min_length |= line["min_length"] > 0
        ints = [[line.get(name, 0) for name in INT_COLUMNS] for line in lines]
        floats = [[line[name] for name in FLOAT_COLUMNS] for line in lines]
        device = self.device
        numbers = to_device(ints, INT, device), to_device(floats, torch.float32, device)
        return self._open(beams, *numbers, start_id)

    def _open(
        self, beams: Sequence[NewBeam], ints: Tensor, floats: Tensor, start_id: int
    ) -> list[int]:
        slot = to_device([beam.slot for beam in beams], INT, self.device)
        self._backend.beam_open(self.tree.arrays, self.beams, slot, ints, floats, start_id)
        return [1] * len(beams)

    def _open_given(self, slots: Sequence[int], given: Sequence[Sequence[int]]) -> None:
        """Keep the tokens that these sources begin with."""
        longest = max(map(len, given))
        if not longest:
            return
        self.beams = self.beams.reserved(0, 0, longest)
        for p, tokens in zip(slots, given, strict=True):
            self.beams.prefix[p, : len(tokens)] = to_device(tokens, INT, self.device)

    def read(self, slot: Tensor, num_rows: int, longest: int) -> tuple[Rows, Moving]:
        """The rows of these slots [A], beams one after another, and what `select` needs of them.

        There is room for `num_rows` rows of at most `longest` tokens, start included.
        """
        tree = self.tree
        is_held = self.algorithm.finishing == Finishing.HELD
        num_entries = slot.numel() * self.width_capacity if is_held else num_rows
        fields = self._backend.beam_read(
            tree.token,
            tree.row_node,
            tree.row_cell,
            self.beams,
            slot,
            self.algorithm.refills,
            num_rows,
            num_entries,
        )
        rows, moving = fields[: -len(Moving._fields)], fields[-len(Moving._fields) :]
        offset, token, depth, *others = rows
        rows = offset, token, self._position(depth, others[1]), *others
        limits = self.beams.prefix_length, self.beams.max_length
        rows = *rows, longest, *limits, self.eos_ids, self.beams.score, self._processing.prompts
        return Rows(tree, slot, *rows), Moving(*moving)

    def _position(self, depth: Tensor, bit: Tensor) -> Tensor:
        """[R], the tokens before each row, by the depth of its source and its entry."""
        return depth

    def process(self, logits: Tensor, rows: Rows) -> Tensor:
        """What the algorithm's processors make of the logits [R, V], which may be overwritten."""
        return self._processing(logits, rows)

    def select(self, rows: Rows, moving: Moving, logits: Tensor) -> Survivors:
        """The survivors of the beams that move, by the algorithm's rules and each source's limits.

        `logits` are what `process` gave.
        """
        return self._follow(rows, moving, logits)

    def _follow(self, rows: Rows, moving: Moving, logits: Tensor) -> Survivors:
        target, score = None, moving.score
        if self._uses_target:
            target = next_target(self.beams, rows.slot)
            score = startable(score, moving.offset, target)
        chosen = self._select(moving._replace(score=score), logits)
        if self.algorithm.prefix.leading_eos and (self._uses_prefix or self._uses_target):
            chosen = led(chosen, self.beams, rows.slot)
        log_probs = self._processing.log_probs if self._processing.perturbs else None
        if log_probs is not None:
            chosen = unperturbed(chosen, rows, self.beams.is_alive, log_probs)
        if target is None:
            return chosen
        normalises = self._processing.normalises
        eos_id = self.eos_ids[0]
        return followed(chosen, target, rows, moving, logits, eos_id, normalises, log_probs)

    def _select(self, moving: Moving, logits: Tensor) -> Survivors:
        finishing = self.algorithm.finishing
        is_held = finishing == Finishing.HELD
        return Survivors(
            *self._backend.select(
                logits,
                moving.score,
                moving.offset,
                moving.width,
                moving.is_ended if is_held else None,
                moving.max_candidates if self._uses_limit else None,
                moving.margin if self._uses_margin else None,
                moving.local_margin if self._uses_local_margin else None,
                moving.best_finished if is_held and self._uses_margin else None,
                moving.forced if self._uses_prefix else None,
                moving.ban_eos if self._uses_min_length else None,
                self.eos_ids,
                self._finishing,
                self.width_capacity * (2 if finishing == Finishing.REFILL else 1),
                self._processing.normalises,
            )
        )

    def commit(self, slot: Tensor, survivors: Survivors) -> tuple[Tensor, Tensor]:
        """Finish, append and stop: survivors become the beams of slots [A].

        Returns source and target entries [A * K] int32 for `Session.advance`.
        """
        stop = self.algorithm.stop
        survivors, raw = self._with_one_eos(survivors)
        return self._backend.beam_commit(
            self.tree.arrays,
            self.beams,
            slot,
            *survivors,
            raw,
            self.eos_ids[0],
            self._finishing,
            stop.keeps_best,
            int(stop.top),
            int(stop.certificate),
        )

    def _with_one_eos(self, survivors: Survivors) -> tuple[Survivors, Tensor | None]:
        """Every EOS becomes the first one; with the tokens as they were, if there are several."""
        token = survivors.token
        if len(self.eos_ids) == 1:
            return survivors, None
        is_eos = torch.stack([token == eos_id for eos_id in self.eos_ids]).any(0)
        return survivors._replace(token=torch.where(is_eos, self.eos_ids[0], token)), token

    def plan(
        self, choose: Callable[..., Tensor], slot: Tensor, limit: int | None
    ) -> tuple[Tensor, Tensor]:
        """Let `Schedule.plan` choose among these slots [A].

        Returns the slots [A], `NULL_SLOT` in place of those that do not move, and the rows of each [A].
        """
        reason, num_rows, depth, *_, waited = (
            self.beams.ints[:, : NUM_REPORTED + 1].index_select(0, slot).unbind(1)
        )
        num_rows = torch.where(reason == RUNNING, num_rows, 0)
        moves = choose(depth, num_rows, waited, limit)
        self.beams.waited[slot.long()] = torch.where(moves, 0, waited + 1)
        return torch.where(moves, slot, NULL_SLOT), torch.where(moves, num_rows, 0)

    def report(self, slot: Tensor) -> Tensor:
        """What the host shall know of these slots [A]; `Report.parse` reads a copy of it."""
        lines = self.beams.ints[:, : NUM_REPORTED + 1].index_select(0, slot)
        # in place of the first column that the host does not need
        lines[:, NUM_REPORTED] = self.tree.num_pages.index_select(0, slot)
        return torch.cat((self.tree.num_free_pages, lines.view(-1)))

    def finished(
        self,
        slots: Sequence[int],
        counts: Sequence[int],
        capacity: int,
        *,
        wants_log_probs: bool,
    ) -> Tensor:
        """What these slots have found, so many hypotheses each, in the order of finishing.

        `capacity` is at least the tokens of the longest one, start included. `Found.parse` reads a copy.
        """
        tree = self.tree
        index = np.stack((np.repeat(slots, counts), np.concatenate([np.arange(n) for n in counts])))
        owner, place = to_device(index, torch.long, self.device)
        ints = self.beams.finished_ints[owner, place]  # [n, 3]
        owner, node = owner.to(INT), ints[:, 0]
        paths, length = self._backend.backtrace(tree.token, tree.parent, owner, node, capacity)
        log_probs = None
        if wants_log_probs:
            values = tree.log_prob.view(INT)
            backtrace = self._backend.backtrace
            log_probs = backtrace(values, tree.parent, owner, node, capacity)[0]
            log_probs = log_probs.view(torch.float32)
        floats = self.beams.finished_floats[owner.long(), place]  # [n, 3]
        return FinishedArrays(ints, floats, length, paths, log_probs).packed()

    def choices(self, slots: Sequence[int], capacity: int) -> Tensor:
        """[A, 1 + 2 * capacity] int32: of these slots how many nodes, their tokens and parents.

        `capacity` is at least the nodes of any of them.
        """
        slot, tree = to_device(slots, torch.long, self.device), self.tree
        arrays = [
            torch.nn.functional.pad(array[:, :capacity], (0, max(0, capacity - array.shape[1])))
            for array in (tree.token, tree.parent)
        ]
        return torch.cat((tree.num_nodes[slot, None], *(array[slot] for array in arrays)), 1)

    def close(self, slots: Sequence[int]) -> None:
        """Empty these slots and give their pages back."""
        self._backend.beam_close(self.tree.arrays, self.beams, to_device(slots, INT, self.device))

    def check(self) -> None:
        """Assert the invariants; tests call this after every step."""
        self.tree.check()
        beams = self.beams
        for p in range(beams.num_entries.numel()):
            alive, n = beams.is_alive[p].tolist(), int(beams.num_entries[p])
            assert not any(alive[n:]), f"slot {p} has rows behind its last entry"
            assert sum(alive) == int(beams.num_rows[p]), f"slot {p} counts its rows wrongly"
            score = beams.score[p, :n].tolist()
            assert score == sorted(score, reverse=True), f"slot {p} is out of order"
            nodes = self.tree.row_node[p, :n].tolist()
            assert all(0 <= node < int(self.tree.num_nodes[p]) for node in nodes)


def _line(
    limit: Algorithm, prefix_length: int, target_length: int, source_length: int
) -> dict[str, float]:
    """The columns of `Beams` that are not zero in a beam of one row, the start token."""
    most, scoring = limit.pruning.max_candidates, limit.scoring
    scored_from = 0 if limit.prefix.is_scored else prefix_length
    return dict(
        num_rows=1,
        num_entries=1,
        width=limit.width,
        stop_at=min(limit.stop_at, NO_LIMIT),
        certified=limit.width if limit.stop.needs_full_beam else limit.n_best,
        max_candidates=NO_LIMIT if most is None else int(min(most, NO_LIMIT)),
        min_length=limit.min_length,
        max_length=limit.max_length,
        prefix_length=prefix_length,
        scored_from=scored_from,
        target_length=prefix_length + target_length - scored_from,
        ended_only=int(limit.ended_only),
        margin=limit.pruning.margin,
        local_margin=limit.pruning.local_margin,
        best_finished=-INF,
        alpha=scoring.alpha,
        offset=scoring.offset,
        scale=scoring.scale,
        reward=scoring.reward,
        cap=scoring.cap(source_length),
        cut_length_offset=scoring.cut_length_offset,
    )
