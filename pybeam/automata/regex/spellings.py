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


@dataclass(frozen=True, eq=False)
class Spellings:
    """Sequences of classes of characters, and the tokens that spell each behind a node of UTF-8.

    Attributes:
        levels: of a tree of such sequences, whose root is 0: the parents and classes of the nodes of each
            level, which are numbered one behind another.
        place: [k], the place of each spelling in that tree.
        node: [k], the node of UTF-8 behind each.
        ids: [n] int32, the tokens that have a spelling, ascending.
        spelling: [n], that of each token.
    """

    levels: list[tuple[np.ndarray, np.ndarray]]
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
        levels, size, position = [], 1, 0
        while len(active := active[texts.length[active] > position]):
            byte = texts.data[texts.begin[active] + position]
            position += 1
            character = utf8.character[nodes[active], byte]
            nodes[active] = behind = utf8.node[nodes[active], byte]
            ends = character != NO_CLASS
            ended = active[ends]
            new, which = np.unique(places[ended] * most + character[ends], return_inverse=True)
            levels.append((new // most, new % most))
            places[ended] = size + which
            size += len(new)
            active = active[behind != BROKEN]
        spelt = nodes != BROKEN
        num_nodes = len(utf8.node)
        both = places[spelt] * num_nodes + nodes[spelt]
        different, spelling = np.unique(both, return_inverse=True)
        place, node_behind = np.divmod(different, num_nodes)
        return cls(levels, place, node_behind, texts.ids[spelt], spelling)

    @cached_property
    def sizes(self) -> np.ndarray:
        """[k], how many tokens have each spelling."""
        return np.bincount(self.spelling, minlength=len(self.place))

    def walk(self, target: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return the state behind each spelling from each of m states, [k, m].

        Args:
            target: [F, classes + 1], the state behind each class from each state.
            states: [m], the states to begin in.
        """
        num = 1 + sum(len(parent) for parent, _ in self.levels)
        behind = np.empty((num, len(states)), dtype=np.int32)
        behind[0] = states
        size = 1
        for parent, character in self.levels:
            level = slice(size, size + len(parent))
            behind[level] = target[behind[parent], character[:, None]]
            size = level.stop
        return behind[self.place]
