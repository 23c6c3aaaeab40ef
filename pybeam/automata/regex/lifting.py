"""From automata over characters to automata over tokens."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from pybeam.automata.automaton import INF, NEVER, NOWHERE, Automaton
from pybeam.automata.regex.character_automaton import CharacterAutomaton
from pybeam.automata.regex.spellings import Spellings, Texts, ranges
from pybeam.automata.regex.utf8 import BROKEN, CONTINUED, ROOT, Utf8
from pybeam.automata.vocabulary import Vocabulary

MAX_STATES, MAX_EDGES = 200_000, 2**26
# of states and spellings that are looked at together
MOST_PAIRS = 2**22
UNKNOWN = -2
START = 0
# a pair that is none: of an output that has no text yet
STILL_START = -1


def lift(characters: CharacterAutomaton, vocabulary: Vocabulary) -> Automaton:
    """Return the automaton of the outputs whose texts an automaton over characters accepts.

    Its states are states of characters, and within a character also the bytes that have begun it, as far as
    they matter. Every state is reached, and can end.

    Raises:
        ValueError: no output has such a text, or there are too many states or edges.
    """
    found = _Search(characters, vocabulary)
    found.run()
    return _automaton(found)


class Batch(NamedTuple):
    """States that read the same spellings, and the ways from them."""

    spellings: Spellings
    states: np.ndarray  # [m], numbers
    begin: np.ndarray  # [e], which of the states each way begins in
    spelling: np.ndarray  # [e], what is read on it
    target: np.ndarray  # [e], the number of the state behind it


class _Search:
    """Find the states that outputs reach. All new states at one node of UTF-8 read all tokens at once.

    A state is a pair of a state of characters and a node of UTF-8, and has a number. Number 0 is the start.
    """

    def __init__(self, characters: CharacterAutomaton, vocabulary: Vocabulary) -> None:
        self.batches: list[Batch] = []
        self.accepts = [bool(characters.accepts[0])]
        self._character_accepts, self._vocabulary = characters.accepts, vocabulary
        num, classes = characters.target.shape
        # the last state is nowhere
        self._target = np.full((num + 1, classes), num, dtype=np.int32)
        self._target[:-1] = np.where(characters.target == NOWHERE, num, characters.target)
        self._utf8 = Utf8.of(characters.class_of)
        self._node = _nodes_that_matter(self._target, self._utf8)
        self._width = len(self._utf8.node)
        self._number = np.full(num * self._width + 1, UNKNOWN, dtype=np.int32)
        self._number[STILL_START] = START
        self._num_edges = 0
        self._todo: dict[int, list[np.ndarray]] = defaultdict(list)

    def run(self) -> None:
        texts = Texts.of(self._vocabulary.tokens)
        start = np.array([0])
        if self._vocabulary.opening == self._vocabulary.tokens:
            self._number[START] = START
            self._todo[ROOT].append(start)
        else:
            opening = Texts.of(self._vocabulary.opening)
            self._read(Spellings.of(opening, self._utf8, ROOT), start, start)
        known: dict[int, Spellings] = {}
        while self._todo:
            node, states = self._todo.popitem()
            if node not in known:
                own = texts if node == ROOT else texts.within_a_character()
                known[node] = Spellings.of(own, self._utf8, node)
            found = np.concatenate(states)
            most = max(1, MOST_PAIRS // (1 + len(known[node].place)))
            for part in np.split(found, range(most, len(found), most)):
                self._read(known[node], part, self._number[part * self._width + node])

    def _read(self, spellings: Spellings, states: np.ndarray, numbers: np.ndarray) -> None:
        """Note where the spellings lead from states of characters with these numbers."""
        begin, spelling, behind = spellings.walk(self._target, states)
        node = self._node[behind, spellings.node[spelling]]
        pairs = behind.astype(np.int64) * self._width + node
        stays = self._vocabulary.skips & (spellings.place == 0) & (spellings.node == ROOT)
        pairs[stays[spelling]] = STILL_START
        leads = node != BROKEN
        begin, spelling, pairs = begin[leads], spelling[leads], pairs[leads]
        self._add(np.unique(pairs[self._number[pairs] == UNKNOWN]))
        self._num_edges += int(spellings.sizes[spelling].sum())
        self._check_size()
        self.batches.append(Batch(spellings, numbers, begin, spelling, self._number[pairs]))

    def _add(self, pairs: np.ndarray) -> None:
        self._number[pairs] = np.arange(len(self.accepts), len(self.accepts) + len(pairs))
        state, node = np.divmod(pairs, self._width)
        self.accepts += (self._character_accepts[state] & (node == ROOT)).tolist()
        for one in np.unique(node).tolist():
            self._todo[one].append(state[node == one])

    def _check_size(self) -> None:
        for name, num, most in (
            ("states", len(self.accepts), MAX_STATES),
            ("edges", self._num_edges, MAX_EDGES),
        ):
            if num > most:
                raise ValueError(
                    f"`pattern` must need at most {most:,} {name} with these tokens, but needs {num:,} and "
                    "more; shorten its repeats"
                )


def _nodes_that_matter(target: np.ndarray, utf8: Utf8) -> np.ndarray:
    """Return, for each state of characters, the first of the nodes behind which the same follows.

    Returns:
        [F, N] int32; -1: nothing follows.
    """
    nowhere = len(target) - 1
    shapes: dict[bytes, np.ndarray] = {}
    found = np.empty((len(target), len(utf8.node)), dtype=np.int32)
    for state, row in enumerate(target):
        # classes that lead to one state are alike, and 0 is nowhere
        _, kind = np.unique(np.append(row[1:], nowhere), return_inverse=True)
        kind = np.append(0, kind[:-1] - kind[-1]).astype(np.int32)
        key = kind.tobytes()
        if key not in shapes:
            shapes[key] = _first_alike(kind, utf8)
        found[state] = shapes[key]
    return found


def _first_alike(kind: np.ndarray, utf8: Utf8) -> np.ndarray:
    """Return the first of the nodes behind which the same kinds of characters follow, of each node."""
    first = np.zeros(len(utf8.node), dtype=np.int32)
    known = {bytes(4 * (CONTINUED.stop - CONTINUED.start)): BROKEN}
    # nodes lead to smaller ones
    for node in range(1, len(utf8.node)):
        behind, character = utf8.node[node, CONTINUED], utf8.character[node, CONTINUED]
        # kinds are not above 0, and nodes that are open are above 0
        follows = np.where(behind == ROOT, kind[character], np.maximum(first[behind], 0))
        follows[behind == BROKEN] = 0
        first[node] = known.setdefault(follows.astype(np.int32).tobytes(), node)
    return first


def _automaton(found: _Search) -> Automaton:
    """Leave out states without an end, and write the edges of the others by token."""
    needed = _needed(found)
    if needed[START] == NEVER:
        raise ValueError("`pattern` must match the text of some output, but no tokens spell one")
    kept = [_kept(batch, needed) for batch in found.batches]
    order = np.concatenate([batch.states for batch in kept])
    number = np.full(len(needed), NOWHERE, dtype=np.int32)
    number[order] = np.arange(len(order))
    edges = [_edges(batch._replace(target=number[batch.target])) for batch in kept]
    count, token, target = (np.concatenate(one) for one in zip(*edges, strict=True))
    states = np.full(len(order), NOWHERE, dtype=np.int32)
    accepts = np.array(found.accepts)[order]
    return Automaton(
        first=np.append(0, np.cumsum(count)).astype(np.int32),
        token=token,
        target=target,
        weight=np.zeros(len(token), dtype=np.float32),
        failure=states,
        other=states,
        other_weight=np.zeros(len(order), dtype=np.float32),
        final=np.where(accepts, 0.0, -INF).astype(np.float32),
    )


def _kept(batch: Batch, needed: np.ndarray) -> Batch:
    """Return the states that have an end, and the ways to others, in the order of the states."""
    lives = needed[batch.states] < NEVER
    ways = np.flatnonzero(needed[batch.target] < NEVER)
    begin = (np.cumsum(lives) - 1)[batch.begin[ways]]
    order = np.argsort(begin, kind="stable")
    ways = ways[order]
    return Batch(
        batch.spellings,
        batch.states[lives],
        begin[order],
        batch.spelling[ways],
        batch.target[ways],
    )


def _edges(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many edges each state has, their tokens, which ascend, and their targets."""
    spellings, num = batch.spellings, len(batch.states)
    sizes = spellings.sizes[batch.spelling]
    count = np.bincount(batch.begin, sizes, num).astype(np.int64)
    begin = np.cumsum(count) - count
    token, target = np.empty((2, int(count.sum())), dtype=np.int32)
    # tokens of many edges are looked up, those of few are sorted
    is_full = count > len(spellings.ids) // 8
    few = ~is_full[batch.begin]
    ids = spellings.tokens(batch.spelling[few])
    order = np.lexsort((ids, np.repeat(batch.begin[few], sizes[few])))
    place = ranges(begin[~is_full], count[~is_full])
    token[place] = ids[order]
    target[place] = np.repeat(batch.target[few], sizes[few])[order]
    first = np.searchsorted(batch.begin, np.arange(num + 1))
    row = np.empty(len(spellings.place), dtype=np.int32)
    for state in np.flatnonzero(is_full):
        ways = slice(first[state], first[state + 1])
        row[:] = NOWHERE
        row[batch.spelling[ways]] = batch.target[ways]
        into = row[spellings.spelling]
        leads = into != NOWHERE
        own = slice(begin[state], begin[state] + count[state])
        token[own], target[own] = spellings.ids[leads], into[leads]
    return count, token, target


def _needed(found: _Search) -> np.ndarray:
    """Return the fewest tokens from each state to an end; `NEVER`: there is none."""
    num = len(found.accepts)
    # by target
    pairs = [
        batch.states[batch.begin] + num * batch.target.astype(np.int64) for batch in found.batches
    ]
    target, source = np.divmod(np.unique(np.concatenate(pairs)), num)
    first = np.searchsorted(target, np.arange(num + 1))
    needed = np.full(num, NEVER, dtype=np.int32)
    states, depth = np.flatnonzero(found.accepts), 0
    while len(states):
        needed[states] = depth
        before = source[ranges(first[states], first[states + 1] - first[states])]
        states = np.unique(before[needed[before] == NEVER])
        depth += 1
    return needed
