"""The state of all live sources: beams, finished hypotheses, limits, and the token tree.

Every array has one line per slot. Exactly two methods move rows: `commit` after a selection and
`close` when sources are done; `check` asserts the invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.beams import FLOAT_COLUMNS, INT_COLUMNS, Beams, Moving
from pybeam.models.base import Rows
from pybeam.ops import Finishing, Survivors
from pybeam.search.algorithms import Algorithm
from pybeam.token_tree import TokenTree

INF = float("inf")
INT = torch.int32
NO_LIMIT = torch.iinfo(INT).max


class Finished(NamedTuple):
    """What one source has found, and how."""

    # (tokens without the start, generated length, score, ended, log-probs or None), as they finished
    hypotheses: list[tuple]
    steps: int
    expansions: int
    depth: int


class BeamState:
    """The beams of all live sources and what may be done to them.

    Attributes:
        beams: their arrays, see `Beams`.
        tree: the token tree.
        width_capacity: entries that every beam has room for.
    """

    def __init__(self, algorithm: Algorithm, eos_id: int, backend, device: torch.device) -> None:
        self.algorithm, self.eos_id, self.device = algorithm, eos_id, device
        self._backend = backend
        self._finishing = int(algorithm.finishing)
        self.tree = TokenTree(backend, device)
        # one column at least, so that there is something to gather
        self.beams = Beams.empty(device).reserved(0, 0, prefix=1)
        self._uses_prefix = self._uses_min_length = self._uses_limit = False
        self._uses_margin = self._uses_local_margin = False

    @property
    def width_capacity(self) -> int:
        return self.beams.score.shape[1]

    def reserve(self, num_slots: int, width: int, length: int) -> None:
        """Make room for that many slots, entries per beam and tokens per hypothesis."""
        self.tree.reserve(num_slots, width, length)
        self.beams = self.beams.reserved(num_slots, width, prefix=1)

    def open(
        self,
        slots: Sequence[int],
        limits: Sequence[Algorithm],
        prefixes: Sequence[Sequence[int]],
        start_id: int,
    ) -> None:
        """Start one beam of one row, the start token, in each of these empty slots."""
        self._open_prefixes(slots, prefixes)
        lines = [_line(*pair) for pair in zip(limits, prefixes, strict=True)]
        for line in lines:
            self._uses_limit |= line["max_candidates"] < NO_LIMIT
            self._uses_margin |= line["margin"] < INF
            self._uses_local_margin |= line["local_margin"] < INF
            self._uses_min_length |= line["min_length"] > 0
        ints = [[line.get(name, 0) for name in INT_COLUMNS] for line in lines]
        floats = [[line[name] for name in FLOAT_COLUMNS] for line in lines]
        self._backend.beam_open(
            self.tree.arrays,
            self.beams,
            torch.tensor(slots, dtype=INT, device=self.device),
            torch.tensor(ints, dtype=INT, device=self.device),
            torch.tensor(floats, dtype=torch.float32, device=self.device),
            start_id,
        )

    def _open_prefixes(self, slots: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        longest = max(len(prefix) for prefix in prefixes)
        if not longest:
            return
        self._uses_prefix = True
        self.beams = self.beams.reserved(0, 0, longest)
        for p, prefix in zip(slots, prefixes, strict=True):
            self.beams.prefix[p, : len(prefix)] = torch.tensor(prefix, dtype=INT)

    def read(self, slot: Tensor) -> tuple[Rows, Moving]:
        """The rows of these slots [A], beams one after another, and what `select` needs of them."""
        tree = self.tree
        fields = self._backend.beam_read(
            tree.token, tree.row_node, tree.row_cell, self.beams, slot, self._finishing
        )
        rows, moving = fields[: -len(Moving._fields)], fields[-len(Moving._fields) :]
        return Rows(tree, slot, *rows), Moving(*moving)

    def select(self, moving: Moving, logits: Tensor) -> Survivors:
        """The survivors of the beams that move, by the algorithm's rules and each source's limits."""
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
                self.eos_id,
                self._finishing,
                self.width_capacity * (2 if finishing == Finishing.REFILL else 1),
            )
        )

    def commit(self, slot: Tensor, survivors: Survivors) -> tuple[Tensor, Tensor]:
        """Finish, append and stop: survivors become the beams of slots [A].

        Returns source and target entries [n] int32 of the rows that live on, for `Session.advance`.
        """
        return self._backend.beam_commit(
            self.tree.arrays, self.beams, slot, *survivors, self.eos_id, self._finishing
        )

    def close(self, slots: Sequence[int]) -> None:
        """Empty these slots and give their pages back."""
        slot = torch.tensor(slots, dtype=INT, device=self.device)
        self._backend.beam_close(self.tree.arrays, self.beams, slot)

    def progress(self, slot: Tensor) -> Tensor:
        """Stop reason, rows, depth and steps waited of each of these slots: [A, 4] int32."""
        return self.beams.ints[:, :4].index_select(0, slot)

    def finished(self, slots: Sequence[int], wants_log_probs: bool) -> list[Finished]:
        """What each of these slots has found."""
        tree, slot = self.tree, torch.tensor(slots, dtype=INT, device=self.device)
        sources, found, scores, paths = self._backend.beam_finished(
            tree.token, tree.parent, self.beams, slot
        )
        log_probs: list = [None] * len(found)
        if wants_log_probs:
            owner, node, *_ = found.unbind(1)
            values, _ = self._backend.backtrace(
                tree.log_prob.view(INT), tree.parent, owner, node, paths.shape[1]
            )
            log_probs = values.view(torch.float32).tolist()
        hypotheses = []
        lines = zip(found.tolist(), scores.tolist(), paths.tolist(), log_probs, strict=True)
        for (_, _, length, ended, n), (score, of_eos), path, values in lines:
            if values is not None:
                values = values[1:n] + [of_eos] * ended
            hypotheses.append((path[1:n], length, score, bool(ended), values))
        remaining = iter(hypotheses)
        return [
            Finished([next(remaining) for _ in range(count)], *numbers)
            for count, *numbers in sources.tolist()
        ]

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


def _line(limit: Algorithm, prefix: Sequence[int]) -> dict[str, float]:
    """The columns of `Beams` that are not zero in a beam of one row, the start token."""
    most = limit.pruning.max_candidates
    return dict(
        num_rows=1,
        num_entries=1,
        width=limit.width,
        stop_at=limit.stop_at,
        max_candidates=NO_LIMIT if most is None else int(min(most, NO_LIMIT)),
        min_length=limit.min_length,
        max_length=limit.max_length,
        prefix_length=len(prefix),
        margin=limit.pruning.margin,
        local_margin=limit.pruning.local_margin,
        best_finished=-INF,
    )
