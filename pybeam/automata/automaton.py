"""`Automaton`: states, and edges between them by tokens, in flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

NOWHERE = -1
INF = float("inf")
MAX_STATES = 2**31 - 2
# what is found once, wherever an automaton starts
OF_ANY_START = {"is_sparse", "max_children", "needed", "tokens", "_steps", "_useful"}
CACHES = {"_copies", "_needed_behind", "_steps", "_useful"}  # which a pickle leaves out
NEVER = np.iinfo(np.int32).max


class Step(NamedTuple):
    """Where a token leads."""

    state: int  # -1: nowhere, the token is forbidden
    weight: float  # what is added to the token's log-probability


@dataclass(frozen=True, eq=False)
class Automaton:
    """Which tokens may follow which, and what they weigh.

    ``step(s, v)``, where token v leads from state s and what it adds to a score, is

    - the edge of s that has v, if there is one: its target and its weight. A target of -1 forbids v;
    - else, where ``failure[s] = f`` is a state: ``step(f, v)``, with ``other_weight[s]`` added;
    - else ``(other[s], other_weight[s])``, where `other` is a state;
    - else nowhere: v is forbidden.

    An output of tokens y is valid if every step leads somewhere and ``final[s]`` of the last state is above
    -inf. Its weight is the sum of the weights of its steps and of ``final[s]``, which is added to EOS. EOS
    has no edges.

    Failures serve what weighs and forbids tokens, such as language models with back-off (Katz 1987) and sets
    of sequences (Aho and Corasick 1975). They are the failure transitions of Mohri 1997. An automaton that
    has some may end everywhere.

    An automaton does not change, and any number of decoders and threads may share it.

    Attributes:
        first: [F + 1] int32; edges of state s are first[s] to first[s + 1], the second exclusive.
        token: [E] int32, of every edge; ascending among those of one state.
        target: [E] int32, the state that an edge leads to; -1: its token is forbidden.
        weight: [E] float32, in nats, finite.
        failure: [F] int32, a smaller state to look further in; -1: there is none.
        other: [F] int32, where tokens lead that have no edge; -1: they are forbidden. -1 where `failure` is
            a state.
        other_weight: [F] float32, in nats, finite.
        final: [F] float32, what an end adds, in nats; -inf: no output ends there.
        start: the state of an output without tokens.
        allows_cuts: whether an output that `max_length` cuts is valid, too. Every state must be able to end.

    Raises:
        ValueError: the arrays are none of this form.
    """

    first: np.ndarray
    token: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    failure: np.ndarray
    other: np.ndarray
    other_weight: np.ndarray
    final: np.ndarray
    start: int = 0
    allows_cuts: bool = False

    def __post_init__(self) -> None:
        for field in fields(self)[:-2]:
            name, array = field.name, getattr(self, field.name)
            dtype = np.float32 if name in ("weight", "other_weight", "final") else np.int32
            if array.dtype != dtype or array.ndim != 1:
                raise ValueError(
                    f"`{name}` must be {np.dtype(dtype)} [n], but is {array.dtype} {list(array.shape)}"
                )
        num, edges = self.num_states, self.num_edges
        if not num:
            raise ValueError("an automaton must have a start, but has no state")
        if not 0 <= self.start < num:
            raise ValueError(f"`start` must be a state from 0 to {num - 1}, but is {self.start}")
        sizes = {"failure": num, "other": num, "other_weight": num, "final": num}
        sizes |= {"target": edges, "weight": edges}
        for name, size in sizes.items():
            if len(getattr(self, name)) != size:
                raise ValueError(
                    f"`{name}` must have {size:,} numbers, but has {len(getattr(self, name)):,}"
                )
        self._check_edges()
        self._check_states()

    def _check_edges(self) -> None:
        first, token = self.first, self.token
        if first[0] != 0 or first[-1] != self.num_edges or (np.diff(first) < 0).any():
            raise ValueError("`first` must ascend from 0 to the number of edges")
        ascends = np.diff(token) > 0
        # tokens begin anew with each state
        starts = first[1:-1]
        ascends[starts[(starts > 0) & (starts < self.num_edges)] - 1] = True
        if not ascends.all() or (token < 0).any():
            raise ValueError("`token` must be ids that ascend among the edges of one state")
        self._check_targets("target", self.target)
        self._check_finite("weight", self.weight)

    def _check_states(self) -> None:
        self._check_targets("other", self.other)
        self._check_finite("other_weight", self.other_weight)
        if np.isnan(self.final).any() or (self.final == INF).any():
            raise ValueError("`final` must be finite, or -inf")
        fails = self.failure != NOWHERE
        is_larger = self.failure >= np.arange(self.num_states)
        if (is_larger | (self.failure < NOWHERE)).any():
            raise ValueError("`failure` must be smaller states, or -1")
        if (fails & (self.other != NOWHERE)).any():
            raise ValueError("`other` must be -1 where `failure` is a state")
        if (fails.any() or self.allows_cuts) and (self.final == -INF).any():
            raise ValueError(
                "an automaton with failures, or one that allows cuts, must be able to end in every state"
            )

    def _check_targets(self, name: str, states: np.ndarray) -> None:
        if ((states < NOWHERE) | (states >= self.num_states)).any():
            raise ValueError(f"`{name}` must be states from 0 to {self.num_states - 1}, or -1")

    def _check_finite(self, name: str, weights: np.ndarray) -> None:
        if not np.isfinite(weights).all():
            raise ValueError(f"`{name}` must be finite; a target of -1 forbids a token")

    # arrays that most automata lack, each by name
    @classmethod
    def build(
        cls,
        final: Any,
        *,
        source: Any = (),
        token: Any = (),
        target: Any = (),
        weight: Any = None,
        failure: Any = None,
        other: Any = None,
        other_weight: Any = None,
        start: int = 0,
        allows_cuts: bool = False,
    ) -> Automaton:
        """Build an automaton of edges in any order.

        Args:
            final: [F], see above; a bool for each state instead: whether outputs may end there.
            source, token, target: [E] each: the states that edges leave, their tokens, their targets.
            weight: [E]; None: 0.
            failure, other, other_weight: [F], see above; None: -1, -1 and 0.
            start, allows_cuts: see above.

        Raises:
            ValueError: a state has two edges with one token, or the arrays fit each other in no other way.
        """
        final = np.asarray(final)
        if final.dtype == bool:
            final = np.where(final, 0.0, -INF)
        num = len(final)
        if num > MAX_STATES:
            raise ValueError(
                f"an automaton must have at most {MAX_STATES:,} states, but has {num:,}"
            )
        source, token, target = (np.asarray(a, dtype=np.int64) for a in (source, token, target))
        if not len(source) == len(token) == len(target):
            raise ValueError(
                f"`source`, `token` and `target` must be as many, but are {len(source):,}, "
                f"{len(token):,} and {len(target):,}"
            )
        if ((source < 0) | (source >= num)).any():
            raise ValueError(f"`source` must be states from 0 to {num - 1}")
        order = np.lexsort((token, source))
        source, token, target = source[order], token[order], target[order]
        is_twice = (np.diff(source) == 0) & (np.diff(token) == 0)
        if is_twice.any():
            where = int(np.argmax(is_twice))
            raise ValueError(
                f"state {source[where]} must have one edge with token {token[where]}, but has two"
            )
        first = np.zeros(num + 1, dtype=np.int32)
        np.cumsum(np.bincount(source, minlength=num), out=first[1:])
        weights = np.zeros(len(source)) if weight is None else np.asarray(weight)[order]
        nowhere = np.full(num, NOWHERE)
        return cls(
            first,
            token.astype(np.int32),
            target.astype(np.int32),
            weights.astype(np.float32),
            np.asarray(nowhere if failure is None else failure).astype(np.int32),
            np.asarray(nowhere if other is None else other).astype(np.int32),
            np.asarray(np.zeros(num) if other_weight is None else other_weight).astype(np.float32),
            final.astype(np.float32),
            start,
            allows_cuts,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in CACHES}

    def __repr__(self) -> str:
        return f"Automaton({self.num_states:,} states, {self.num_edges:,} edges)"

    @property
    def num_states(self) -> int:
        return len(self.first) - 1

    @property
    def num_edges(self) -> int:
        return len(self.token)

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(self, field.name).nbytes for field in fields(self)[:-2])

    @cached_property
    def is_sparse(self) -> bool:
        """Whether nothing but tokens with an edge may follow any state."""
        return not bool((self.failure != NOWHERE).any() or (self.other != NOWHERE).any())

    @cached_property
    def max_children(self) -> int:
        """The most edges of a state."""
        return int(np.diff(self.first).max())

    def step(self, state: int, token: int) -> Step:
        """Return where a token leads from a state; see above."""
        added = np.float32(0.0)
        while True:
            begin, end = self.first[state], self.first[state + 1]
            edge = begin + int(np.searchsorted(self.token[begin:end], token))
            if edge < end and self.token[edge] == token:
                return Step(int(self.target[edge]), float(added + self.weight[edge]))
            added += self.other_weight[state]
            if self.failure[state] == NOWHERE:
                return Step(int(self.other[state]), float(added))
            state = int(self.failure[state])

    def walk(self, tokens: Iterable[int], state: int | None = None) -> Step:
        """Return the state behind these tokens and the sum of their weights; -1 if one is forbidden.

        The walk begins at `state`, or at the start.
        """
        total, state = 0.0, self.start if state is None else state
        for token in tokens:
            state, weight = self.step(state, token)
            if state == NOWHERE:
                return Step(NOWHERE, -INF)
            total += weight
        return Step(state, total)

    def starting_at(self, state: int) -> Automaton:
        """Return the automaton that starts in this state; the same object each time."""
        if state not in self._copies:
            copy = replace(self, start=state)
            # the start changes nothing of these
            vars(copy).update({k: v for k, v in vars(self).items() if k in OF_ANY_START})
            self._copies[state] = copy
        return self._copies[state]

    @cached_property
    def _copies(self) -> dict[int, Automaton]:
        return {self.start: self}

    def score(self, tokens: Sequence[int]) -> float:
        """Return the weight of an output without EOS; -inf if it is not valid."""
        state, weight = self.walk(tokens)
        return -INF if state == NOWHERE else weight + float(self.final[state])

    @cached_property
    def needed(self) -> np.ndarray:
        """[F] int32, the fewest tokens from a state to an end; the largest int32: there is no end."""
        # breadth first, backwards from the ends
        needed = np.where(self.final > -INF, 0, NEVER).astype(np.int32)
        source, target = self._steps
        first, source = _grouped(target, source, self.num_states)
        reached, num = np.flatnonzero(needed == 0), 0
        while len(reached):
            num += 1
            before = _followers(first, source, reached)
            reached = np.unique(before[needed[before] == NEVER])
            needed[reached] = num
        return needed

    @property
    def shortest(self) -> int:
        """Tokens of the shortest valid output, without EOS; the largest int32: there is none."""
        return int(self.needed[self.start])

    @cached_property
    def tokens(self) -> np.ndarray:
        """[n] int32, the tokens that edges have, ascending."""
        is_there = np.zeros(int(self.token.max(initial=-1)) + 1, dtype=bool)
        is_there[self.token] = True
        return np.flatnonzero(is_there).astype(np.int32)

    def has_token(self, token: int) -> bool:
        """Whether an edge has the token."""
        place = int(np.searchsorted(self.tokens, token))
        return place < len(self.tokens) and int(self.tokens[place]) == token

    @cached_property
    def longest(self) -> int | None:
        """Tokens of the longest valid output, without EOS; None: there is none, or no limit."""
        # each step leads to states all of whose predecessors have been left
        num_sources = np.zeros(self.num_states, dtype=np.int64)
        first, target = self._useful
        is_known = np.zeros(self.num_states, dtype=bool)
        is_known[self.start] = self.shortest < NEVER
        begun = np.flatnonzero(is_known)
        while len(begun):
            reached, counts = np.unique(_followers(first, target, begun), return_counts=True)
            num_sources[reached] += counts
            begun = reached[~is_known[reached]]
            is_known[begun] = True
        longest, left = None, np.flatnonzero(is_known & (num_sources == 0))
        num_left = 0
        while len(left):
            longest = 0 if longest is None else longest + 1
            num_left += len(left)
            reached, counts = np.unique(_followers(first, target, left), return_counts=True)
            num_sources[reached] -= counts
            left = reached[num_sources[reached] == 0]
        # whoever was not left is in a cycle, or behind one
        return longest if num_left == is_known.sum() else None

    def has_output(self, shortest: int, longest: int) -> bool:
        """Whether a valid output has so many tokens, from `shortest` to `longest`, without EOS."""
        # each request asks, and mostly for the same
        if shortest not in self._needed_behind:
            self._needed_behind[shortest] = self._fewest_behind(shortest)
        return self._needed_behind[shortest] <= longest - shortest

    @cached_property
    def _needed_behind(self) -> dict[int, int]:
        """The fewest tokens to an end behind so many tokens, where somebody has asked."""
        return {}

    def _fewest_behind(self, num_tokens: int) -> int:
        first, target = self._useful
        states = np.array([self.start])
        for _ in range(num_tokens):
            is_reached = np.zeros(self.num_states, dtype=bool)
            is_reached[_followers(first, target, states)] = True
            states = np.flatnonzero(is_reached)
        return int(self.needed[states].min(initial=NEVER))

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of states, source and target, which some token leads from and to; sources ascend.

        A state whose other tokens lead somewhere has a step for them, and one that looks further in another
        one a step to itself, because it may end anywhere.
        """
        num = self.num_states
        states = np.arange(num)
        others = np.where(self.failure == NOWHERE, self.other, states)
        source = np.concatenate([np.repeat(states, np.diff(self.first)), states])
        target = np.concatenate([self.target, others])
        leads = target != NOWHERE
        pairs = source[leads] * num + target[leads]
        if num * num <= 4 * len(pairs):
            # sorting would take longer
            is_step = np.zeros(num * num, dtype=bool)
            is_step[pairs] = True
            return np.divmod(np.flatnonzero(is_step), num)
        # np.unique hashes, which takes ten times as long
        pairs.sort()
        return np.divmod(pairs[np.diff(pairs, prepend=NOWHERE) > 0], num)

    @cached_property
    def _useful(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps behind which an output can end, as edges are kept: first [F + 1] and targets."""
        source, target = self._steps
        is_useful = self.needed[target] < NEVER
        return _grouped(source[is_useful], target[is_useful], self.num_states)


def _grouped(key: np.ndarray, value: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Group values by keys 0 to num - 1: where each key's begin, [num + 1], and the values. -1 has none."""
    order = np.argsort(key, kind="stable")
    return np.searchsorted(key[order], np.arange(num + 1)), value[order]


def _followers(first: np.ndarray, target: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The states [n] that steps of these states lead to, again and again if several do."""
    counts = first[states + 1] - first[states]
    behind = np.cumsum(counts)
    begin = np.repeat(first[states] - behind + counts, counts)
    return target[begin + np.arange(len(begin))]
