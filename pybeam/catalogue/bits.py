"""Bits of the nodes of a tree: below which an allowed sequence ends, and at which."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pybeam.catalogue.levels import Levels

WORD_BYTES = 4
# fewer sequences than this share of all nodes are followed up the tree one by one
SPARSE_SHARE = 1 / 256


class Bits:
    """One bit per node, in bytes that fill whole words."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held  # uint8

    @classmethod
    def filled(cls, num: int, value: int) -> Bits:
        return cls(np.full(WORD_BYTES * num_words(num), value, dtype=np.uint8))

    @classmethod
    def of(cls, flags: np.ndarray) -> Bits:
        """Pack bools [n]."""
        bits, packed = cls.filled(len(flags), 0), np.packbits(flags, bitorder="little")
        bits.held[: len(packed)] = packed
        return bits

    def copy(self) -> Bits:
        return Bits(self.held.copy())

    def set(self, node: np.ndarray) -> None:
        np.bitwise_or.at(self.held, node >> 3, _mask(node))

    def clear(self, node: np.ndarray) -> None:
        np.bitwise_and.at(self.held, node >> 3, ~_mask(node))

    def has(self, node: int) -> bool:
        return bool(self.held[node >> 3] >> (node & 7) & 1)

    def has_any(self, first: int, last: int) -> bool:
        """Whether a node from `first` to `last`, exclusive, has its bit set."""
        flags = np.unpackbits(self.held[first >> 3 : (last + 7) >> 3], bitorder="little")
        begin = first & 7
        return bool(flags[begin : begin + last - first].any())


def _mask(node: np.ndarray) -> np.ndarray:
    return np.left_shift(1, node & 7).astype(np.uint8)


def num_words(num_nodes: int) -> int:
    """Words that hold a bit per node."""
    return -(-num_nodes // (8 * WORD_BYTES))


class NodeBits(NamedTuple):
    """Which nodes of a tree a search may enter."""

    alive: Bits  # an allowed sequence ends here or below
    ends: Bits  # an allowed sequence ends here

    def words(self) -> np.ndarray:
        """Return all bits as [2 * W] int32, those of `alive` first."""
        return np.concatenate((self.alive.held, self.ends.held)).view(np.int32)


def of_all(levels: Levels) -> NodeBits:
    """All nodes are alive, and all sequences end."""
    ends = np.zeros(levels.num_nodes, dtype=bool)
    ends[levels.end] = True
    return NodeBits(Bits.filled(levels.num_nodes, 255), Bits.of(ends))


def of_only(levels: Levels, allowed: np.ndarray) -> NodeBits:
    """These sequences [q], places in `Levels.end`, are all that is allowed."""
    node = levels.end[allowed]
    if len(node) > SPARSE_SHARE * levels.num_nodes:
        ends = np.zeros(levels.num_nodes, dtype=bool)
        ends[node] = True
        return _from_ends(levels, ends)
    bits = NodeBits(Bits.filled(levels.num_nodes, 0), Bits.filled(levels.num_nodes, 0))
    bits.ends.set(node)
    while len(node):
        bits.alive.set(node)
        node = np.unique(levels.parents(node[node > 0]))
    return bits


def without(levels: Levels, every: NodeBits, denied: np.ndarray) -> NodeBits:
    """All but these sequences [q] are allowed; `every` is the result of `of_all`."""
    node = levels.end[denied]
    if len(node) > SPARSE_SHARE * levels.num_nodes:
        ends = np.zeros(levels.num_nodes, dtype=bool)
        ends[levels.end] = True
        ends[node] = False
        return _from_ends(levels, ends)
    alive, ends_left = every.alive.copy(), every.ends.copy()
    ends_left.clear(node)
    pending = set(node.tolist())
    while pending:
        # children have larger numbers than their parents, so all of a node's come before it
        n = max(pending)
        pending.remove(n)
        first, last = levels.edges(n)
        if ends_left.has(n) or alive.has_any(first + 1, last + 1):
            continue
        own = np.array([n])
        alive.clear(own)
        if n:
            pending.add(int(levels.parents(own)[0]))
    return NodeBits(alive, ends_left)


def _from_ends(levels: Levels, ends: np.ndarray) -> NodeBits:
    alive = ends.copy()
    # from the deepest level with children up to the root
    for depth in range(len(levels.start) - 3, -1, -1):
        low, high, top = levels.start[depth : depth + 3]
        below = np.zeros(
            top - high + 1, dtype=np.int32
        )  # alive nodes before each of the next level
        np.cumsum(alive[high:top], out=below[1:])
        # the children of a node are neighbours there
        count = below[levels.first[low : high + 1] - (high - 1)]
        alive[low:high] |= count[1:] > count[:-1]
    return NodeBits(Bits.of(alive), Bits.of(ends))
