"""Which characters tokens spell, each tried from within a character, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pybeam.automata.regex.utf8 import BROKEN, CONTINUED, NO_CLASS, Utf8


class Texts(NamedTuple):
    """The bytes of tokens, one behind another."""

    ids: np.ndarray  # [n] int32, ascending
    begin: np.ndarray  # [n], where the bytes of each begin
    length: np.ndarray  # [n]
    data: np.ndarray  # [bytes] uint8

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> Texts:
        """Return those that are not None; their places are their ids."""
        ids = np.array([i for i, text in enumerate(texts) if text is not None], dtype=np.int32)
        own = [text for text in texts if text is not None]
        length = np.array([len(text) for text in own], dtype=np.int64)
        data = np.frombuffer(b"".join(own), dtype=np.uint8)
        return cls(ids, np.cumsum(length) - length, length, data)

    def within_a_character(self) -> Texts:
        """Return those that go on with a character."""
        byte = self.data[self.begin]
        which = (byte >= CONTINUED.start) & (byte < CONTINUED.stop)
        return self._replace(
            ids=self.ids[which], begin=self.begin[which], length=self.length[which]
        )


class Tree(NamedTuple):
    """Sequences of classes of characters. Place 0 is the empty one."""

    first: np.ndarray  # [P + 1], where the children of each place begin
    child: np.ndarray  # [P - 1], their places
    character: np.ndarray  # [P - 1], their last classes

    @classmethod
    def of(cls, parent: np.ndarray, character: np.ndarray) -> Tree:
        """Return that of places 1, 2, … with these parents and last classes."""
        order = np.argsort(parent, kind="stable")
        first = np.searchsorted(parent[order], np.arange(len(parent) + 2))
        return cls(first, order + 1, character[order])


@dataclass(frozen=True, eq=False)
class Spellings:
    """Sequences of classes of characters, and the tokens that spell each behind a node of UTF-8.

    Attributes:
        tree: of such sequences.
        place: [k], the place of each spelling in the tree, ascending.
        node: [k], the node of UTF-8 behind each.
        ids: [n] int32, the tokens that have a spelling, ascending.
        spelling: [n], that of each token.
    """

    tree: Tree
    place: np.ndarray
    node: np.ndarray
    ids: np.ndarray
    spelling: np.ndarray

    @classmethod
    def of(cls, texts: Texts, utf8: Utf8, node: int) -> Spellings:
        """Read all texts at once, byte by byte, behind one node."""
        most = int(utf8.character.max()) + 1
        nodes = np.full(len(texts.ids), node, dtype=np.int32)
        places = np.zeros(len(texts.ids), dtype=np.int64)
        active = np.arange(len(texts.ids))
        steps, size, position = [np.zeros(0, dtype=np.int64)], 1, 0
        while len(active := active[texts.length[active] > position]):
            byte = texts.data[texts.begin[active] + position]
            position += 1
            character = utf8.character[nodes[active], byte]
            nodes[active] = behind = utf8.node[nodes[active], byte]
            ends = character != NO_CLASS
            ended = active[ends]
            new, which = np.unique(places[ended] * most + character[ends], return_inverse=True)
            steps.append(new)
            places[ended] = size + which
            size += len(new)
            active = active[behind != BROKEN]
        tree = Tree.of(*np.divmod(np.concatenate(steps), most))
        spelt = nodes != BROKEN
        num_nodes = len(utf8.node)
        both = places[spelt] * num_nodes + nodes[spelt]
        different, spelling = np.unique(both, return_inverse=True)
        place, node_behind = np.divmod(different, num_nodes)
        return cls(tree, place, node_behind, texts.ids[spelt], spelling)

    @cached_property
    def sizes(self) -> np.ndarray:
        """[k], how many tokens have each spelling."""
        return np.bincount(self.spelling, minlength=len(self.place))

    @cached_property
    def _by_place(self) -> np.ndarray:
        """Where the spellings of each place begin, [P + 1]."""
        return np.searchsorted(self.place, np.arange(len(self.tree.first)))

    @cached_property
    def _by_spelling(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the tokens of each spelling begin, [k + 1], in the second array."""
        return np.append(0, np.cumsum(self.sizes)), np.argsort(self.spelling, kind="stable")

    def tokens(self, spelling: np.ndarray) -> np.ndarray:
        """Return the tokens of these spellings, those of one behind those of another."""
        first, order = self._by_spelling
        return self.ids[order[ranges(first[spelling], self.sizes[spelling])]]

    def walk(self, target: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, ...]:
        """Read all spellings from each of m states.

        Args:
            target: [F + 1, classes + 1], the state behind each class from each state; the last state is
                nowhere.
            states: [m], the states to begin in.

        Returns:
            Three arrays [e] of all ways that lead somewhere: which of the states they begin in, their
            spellings, and the states behind them.
        """
        begin, place, state = np.arange(len(states)), np.zeros(len(states), dtype=np.int64), states
        found = []
        while len(place):
            found.append((begin, place, state))
            num = self.tree.first[place + 1] - self.tree.first[place]
            step = ranges(self.tree.first[place], num)
            state = target[np.repeat(state, num), self.tree.character[step]]
            lives = state != len(target) - 1
            begin, place, state = (
                np.repeat(begin, num)[lives],
                self.tree.child[step][lives],
                state[lives],
            )
        begin, place, state = (np.concatenate(one) for one in zip(*found, strict=True))
        first = self._by_place
        num = first[place + 1] - first[place]
        return np.repeat(begin, num), ranges(first[place], num), np.repeat(state, num)


def ranges(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the numbers of ranges, one behind another."""
    ends = np.cumsum(length)
    return np.repeat(begin - ends + length, length) + np.arange(ends[-1] if len(ends) else 0)
