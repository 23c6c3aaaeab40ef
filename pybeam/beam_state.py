"""The state of all live sources: beams, finished hypotheses, limits, and the token tree.

Every array has one line per slot. Exactly two methods move rows: `commit` after a selection and
`close` when sources are done; `check` asserts the invariants.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.models.base import Rows
from pybeam.ops import Finishing, Survivors
from pybeam.search.algorithms import Algorithm
from pybeam.token_tree import TokenTree, grown

INF = float("inf")
INT = torch.int32

RUNNING, WIDTH, N_BEST, EMPTY_BEAM, MAX_LENGTH, NAN = range(6)
STOP_REASONS = ("running", "width", "n_best", "empty_beam", "max_length", "error")


class BeamState:
    """Arrays over slots ``S``, entries ``K`` and finished hypotheses ``F = 2K``.

    An *entry* is a place in a beam: a row that is alive, or a held hypothesis that has ended.
    """

    def __init__(self, algorithm: Algorithm, eos_id: int, backend, device: torch.device) -> None:
        self.algorithm, self.eos_id, self.device = algorithm, eos_id, device
        self._backend = backend
        self.tree = TokenTree(backend, device)
        self.width_capacity = 0

        def per_slot(dtype=INT) -> Tensor:
            return torch.zeros(0, dtype=dtype, device=device)

        def per_entry(dtype=INT) -> Tensor:
            return torch.zeros(0, 0, dtype=dtype, device=device)

        self.width, self.max_candidates, self.stop_at = per_slot(), per_slot(), per_slot()
        self.margin, self.local_margin = per_slot(torch.float32), per_slot(torch.float32)
        self.min_length, self.max_length, self.prefix_length = per_slot(), per_slot(), per_slot()
        self.prefix = per_entry()  # [S, longest prefix]

        self.depth = per_slot()  # tokens after the start token
        self.steps, self.expansions, self.waited = per_slot(), per_slot(), per_slot()
        self.reason = per_slot()

        self.num_entries, self.num_rows = per_slot(), per_slot()
        self.score = per_entry(torch.float32)
        self.is_alive = per_entry(torch.bool)
        self.ended_length = per_entry()
        self.eos_log_prob = per_entry(torch.float32)

        self.num_finished, self.best_finished = per_slot(), per_slot(torch.float32)
        self.finished_node, self.finished_length = per_entry(), per_entry()
        self.finished_score = per_entry(torch.float32)
        self.finished_log_prob = per_entry(torch.float32)  # of EOS
        self.finished_ended = per_entry(torch.bool)

        self._uses_prefix = self._uses_min_length = self._uses_limit = False
        self._uses_margin = self._uses_local_margin = False

    _PER_SLOT = (
        "width max_candidates stop_at margin local_margin min_length max_length prefix_length depth steps "
        "expansions waited reason num_entries num_rows num_finished best_finished"
    ).split()
    _PER_ENTRY = "score is_alive ended_length eos_log_prob".split()
    _PER_FINISHED = (
        "finished_node finished_length finished_score finished_log_prob finished_ended".split()
    )

    def reserve(self, num_slots: int, width: int, length: int) -> None:
        """Make room for that many slots, entries per beam and tokens per hypothesis."""
        self.width_capacity = max(width, self.width_capacity)
        self.tree.reserve(num_slots, width, length)
        for name in self._PER_SLOT:
            setattr(self, name, grown(getattr(self, name), (num_slots,)))
        for name in self._PER_ENTRY:
            setattr(self, name, grown(getattr(self, name), (num_slots, width)))
        for name in self._PER_FINISHED:
            # one more column takes the writes of candidates that do not finish
            setattr(self, name, grown(getattr(self, name), (num_slots, 2 * width + 1)))
        self.prefix = grown(self.prefix, (num_slots, 1))
        self._entry = torch.arange(2 * self.width_capacity, dtype=INT, device=self.device)

    def open(
        self,
        slots: Sequence[int],
        limits: Sequence[Algorithm],
        prefixes: Sequence[Sequence[int]],
        start_id: int,
    ) -> None:
        """Start one beam of one row, the start token, in each of these empty slots."""
        slot = torch.tensor(slots, dtype=INT, device=self.device)
        i = slot.long()

        def put(name: str, values: list) -> None:
            array = getattr(self, name)
            array[i] = torch.tensor(values, dtype=array.dtype, device=self.device)

        most = torch.iinfo(INT).max
        put("width", [limit.width for limit in limits])
        put("stop_at", [limit.stop_at for limit in limits])
        put(
            "max_candidates",
            [int(min(limit.pruning.max_candidates or most, most)) for limit in limits],
        )
        put("margin", [limit.pruning.margin for limit in limits])
        put("local_margin", [limit.pruning.local_margin for limit in limits])
        put("min_length", [limit.min_length for limit in limits])
        put("max_length", [limit.max_length for limit in limits])
        put("prefix_length", [len(prefix) for prefix in prefixes])
        self._uses_limit |= any(limit.pruning.max_candidates is not None for limit in limits)
        self._uses_margin |= any(limit.pruning.margin < INF for limit in limits)
        self._uses_local_margin |= any(limit.pruning.local_margin < INF for limit in limits)
        self._uses_min_length |= any(limit.min_length > 0 for limit in limits)
        self._uses_prefix |= any(len(prefix) > 0 for prefix in prefixes)
        longest = max(len(prefix) for prefix in prefixes)
        self.prefix = grown(self.prefix, (self.prefix.shape[0], longest))
        for p, prefix in zip(slots, prefixes, strict=True):
            self.prefix[p, : len(prefix)] = torch.tensor(prefix, dtype=INT)
        for name in ("depth", "steps", "expansions", "waited", "reason", "num_finished"):
            getattr(self, name)[i] = 0
        self.best_finished[i] = -INF
        self.num_entries[i] = self.num_rows[i] = 1
        self.is_alive[i] = False
        self.is_alive[i, 0] = True
        self.score[i, 0] = 0.0
        self.tree.open(slot, start_id)

    def rows(self, slot: Tensor) -> Rows:
        """The rows of these slots [A], beams one after another."""
        i = slot.long()
        count = self.num_rows[i]
        index = self.is_alive[i].flatten().nonzero().squeeze(1)
        source = index.div(self.is_alive.shape[1], rounding_mode="floor")
        row_slot = i[source]
        bit = index - source * self.is_alive.shape[1]
        node = self.tree.row_node[row_slot, bit]
        return Rows(
            tree=self.tree,
            slot=slot,
            offset=_offsets(count),
            token=self.tree.token[row_slot, node.long()],
            position=self.depth[row_slot],
            row_slot=row_slot.to(INT),
            bit=bit.to(INT),
            node=node,
            cell=self.tree.row_cell[row_slot, bit],
        )

    def select(self, slot: Tensor, offset: Tensor, logits: Tensor) -> Survivors:
        """The survivors of these slots' beams, by the algorithm's rules and each source's limits."""
        i = slot.long()
        finishing = self.algorithm.finishing
        is_held = finishing == Finishing.HELD
        is_entry = self._entry[: self.score.shape[1]] < self.num_entries[i][:, None]  # [A, K]
        taken = torch.zeros_like(i) if finishing == Finishing.REFILL else self.num_finished[i]
        return Survivors(
            *self._backend.select(
                logits,
                self.score[i][is_entry],
                _offsets(self.num_entries[i]) if is_held else offset,
                (self.width[i] - taken).to(INT),
                ~self.is_alive[i][is_entry] if is_held else None,
                self.max_candidates[i] if self._uses_limit else None,
                self.margin[i] if self._uses_margin else None,
                self.local_margin[i] if self._uses_local_margin else None,
                self.best_finished[i] if is_held and self._uses_margin else None,
                self._forced(i) if self._uses_prefix else None,
                self._bans_eos(i) if self._uses_min_length else None,
                self.eos_id,
                int(finishing),
                self.width_capacity * (2 if finishing == Finishing.REFILL else 1),
            )
        )

    def _forced(self, i: Tensor) -> Tensor:
        depth = self.depth[i].long()
        last = self.prefix.shape[1] - 1
        token = self.prefix[i, depth.clamp(max=last)]
        return torch.where(depth < self.prefix_length[i], token, -1)

    def _bans_eos(self, i: Tensor) -> Tensor:
        return self.depth[i] - self.prefix_length[i] < self.min_length[i]

    def commit(self, slot: Tensor, survivors: Survivors) -> tuple[Tensor, Tensor]:
        """Finish, append and stop: survivors become the beams of slots [A].

        Returns source and target entries of the rows that live on, for `Session.advance`.
        """
        i = slot.long()
        column = i[:, None]
        first, count = survivors.num_finished[:, None], survivors.count[:, None]
        capacity = survivors.token.shape[1]
        self.steps[i] += 1
        self.expansions[i] += self.num_rows[i]
        self.depth[i] += 1
        length = self.depth[i] - self.prefix_length[i]  # [A] generated tokens

        parent = survivors.parent.clamp(min=0).long()  # [A, C]
        was_alive = self.is_alive[column, parent]
        is_ended = survivors.token == self.eos_id
        ended_node = self.tree.row_node[column, parent]
        ended_length = torch.where(was_alive, length[:, None], self.ended_length[column, parent])
        eos_log_prob = torch.where(was_alive, survivors.log_prob, self.eos_log_prob[column, parent])
        self.tree.append(
            slot,
            survivors.num_finished,
            survivors.count,
            survivors.parent,
            survivors.token,
            survivors.log_prob,
            self.eos_id,
        )

        entry, rank = self._entry[: self.score.shape[1]], self._entry[:capacity]
        is_entry = entry < count - first  # [A, K]
        place = (entry + first).clamp(max=capacity - 1).long()  # survivor that becomes each entry
        is_alive = is_entry & ~is_ended.gather(1, place)
        num_rows = is_alive.sum(1, dtype=INT)
        self.score[i] = survivors.score.gather(1, place)
        self.is_alive[i] = is_alive
        self.num_entries[i] = (count - first).squeeze(1)
        self.num_rows[i] = num_rows
        if self.algorithm.finishing == Finishing.HELD:
            self.ended_length[i] = ended_length.gather(1, place)
            self.eos_log_prob[i] = eos_log_prob.gather(1, place)

        finishes = rank < first  # [A, C]
        if self.algorithm.finishing == Finishing.REFILL:
            finishes &= self.num_finished[column] + rank < self.width[column]
        ends = self._stop(i, finishes, length, num_rows, survivors.has_nan)
        # what is left in a beam that ends finishes as it is
        remains = ends[:, None] & (rank >= first) & (rank < count)
        live_node = self.tree.row_node[column, (rank - first).clamp(0, entry.numel() - 1).long()]
        self._finish(
            i,
            finishes | remains,
            torch.where(is_ended, ended_node, live_node),
            torch.where(is_ended, ended_length, length[:, None]),
            survivors.score,
            eos_log_prob,
            is_ended,
        )
        source = (column * entry.numel() + parent.gather(1, place))[is_alive]
        target = (column * entry.numel() + entry)[is_alive]
        return source.to(INT), target.to(INT)

    def _stop(self, i, finishes, length, num_rows, has_nan) -> Tensor:
        """Decide which sources [A] are done; True for those whose beam ends with them."""
        stop_at = self.stop_at[i]
        has_enough = self.num_finished[i] + finishes.sum(1) >= stop_at
        is_empty = num_rows == 0
        is_cut = length >= self.max_length[i]
        reason = torch.where(is_empty, EMPTY_BEAM, torch.where(is_cut, MAX_LENGTH, RUNNING))
        by_n_best = stop_at < self.width[i]
        reason = torch.where(has_enough, torch.where(by_n_best, N_BEST, WIDTH), reason)
        self.reason[i] = torch.where(has_nan, NAN, reason).to(INT)
        return (is_empty | is_cut) & ~has_enough & ~has_nan

    def _finish(self, i, finishes, node, length, score, log_prob, ended) -> None:
        """Append those survivors [A, C] that finish to the finished hypotheses, in rank order."""
        column = i[:, None]
        place = self.num_finished[column] + finishes.cumsum(1, dtype=INT) - 1
        dump = self.finished_node.shape[1] - 1
        place = torch.where(finishes, place, dump).long()
        self.finished_node[column, place] = node
        self.finished_length[column, place] = length
        self.finished_score[column, place] = score
        self.finished_log_prob[column, place] = log_prob
        self.finished_ended[column, place] = ended
        self.num_finished[i] += finishes.sum(1, dtype=INT)
        best = torch.where(finishes, score, -INF).amax(1)
        self.best_finished[i] = torch.maximum(self.best_finished[i], best)

    def close(self, slots: Sequence[int]) -> None:
        """Empty these slots and give their pages back."""
        slot = torch.tensor(slots, dtype=INT, device=self.device)
        self.num_entries[slot.long()] = self.num_rows[slot.long()] = 0
        self.is_alive[slot.long()] = False
        self.tree.release(slot)

    def finished(self, slots: Sequence[int], wants_log_probs: bool) -> list[list[tuple]]:
        """Finished hypotheses of each slot, in the order of finishing.

        Each is (tokens without the start, generated length, score, ended, log-probs or None).
        """
        slot = torch.tensor(slots, dtype=INT, device=self.device)
        i = slot.long()
        count = self.num_finished[i]
        is_finished = torch.arange(self.finished_node.shape[1], device=self.device) < count[:, None]
        slot = slot.repeat_interleave(count)
        node = self.finished_node[i][is_finished]
        capacity = int(self.depth[i].max()) + 1

        def paths(values: Tensor) -> list[list]:
            line, length = self._backend.backtrace(values, self.tree.parent, slot, node, capacity)
            line = line.view(torch.float32) if values is not self.tree.token else line
            return [path[1:n] for path, n in zip(line.tolist(), length.tolist(), strict=True)]

        log_probs: list = [None] * slot.numel()
        ended = self.finished_ended[i][is_finished].tolist()
        if wants_log_probs:
            of_eos = self.finished_log_prob[i][is_finished].tolist()
            log_probs = paths(self.tree.log_prob.view(INT))
            log_probs = [
                path + [eos] * is_ended
                for path, eos, is_ended in zip(log_probs, of_eos, ended, strict=True)
            ]
        hypotheses = zip(
            paths(self.tree.token),
            self.finished_length[i][is_finished].tolist(),
            self.finished_score[i][is_finished].tolist(),
            ended,
            log_probs,
            strict=True,
        )
        return [[next(hypotheses) for _ in range(n)] for n in count.tolist()]

    def check(self) -> None:
        """Assert the invariants; tests call this after every step."""
        self.tree.check()
        for p in range(self.num_entries.numel()):
            alive, n = self.is_alive[p].tolist(), int(self.num_entries[p])
            assert not any(alive[n:]), f"slot {p} has rows behind its last entry"
            assert sum(alive) == int(self.num_rows[p]), f"slot {p} counts its rows wrongly"
            score = self.score[p, :n].tolist()
            assert score == sorted(score, reverse=True), f"slot {p} is out of order"
            nodes = self.tree.row_node[p, :n].tolist()
            assert all(0 <= node < int(self.tree.num_nodes[p]) for node in nodes)


def _offsets(count: Tensor) -> Tensor:
    """[A] counts to [A + 1] offsets."""
    return torch.nn.functional.pad(count.cumsum(0, dtype=INT), (1, 0))
