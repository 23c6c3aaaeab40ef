"""`Filter`: the items of a catalogue that a request may return, and bits of the nodes that lead to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.catalogue.levels import Levels

# fewer numbers than this share of all are sorted; more are marked in an array of all
FEW = 1 / 64
WORD_BYTES = 4
# fewer sequences than this share of all nodes are followed up the tree one by one
SPARSE_SHARE = 1 / 256


class Filter:
    """Which items a request may return, made by `pybeam.Catalogue.filter` once for any number of requests.

    A search enters a node of the tree only if an allowed item is there or below, so every row of a beam can
    go on to an allowed item.

    Attributes:
        catalogue: whose items it filters.
        num_items: allowed items.
        num_sequences: their different token sequences. A result has no more hypotheses than that.
        words: [2 * W] int32 on the host, a bit per node: is an allowed item there or below; then a bit per
            node: does an allowed item end there.
    """

    def __init__(
        self,
        catalogue: object,
        bits: NodeBits,
        ids: np.ndarray,
        counts: tuple[int, int],
        *,
        are_allowed: bool,
    ) -> None:
        self.catalogue = catalogue
        self.num_items, self.num_sequences = counts
        self._ids, self._are_allowed = ids, are_allowed  # ascending: what is allowed, or denied
        self.words: Tensor = torch.from_numpy(bits.words())

    def __repr__(self) -> str:
        return f"Filter({self.num_items:,} items)"

    def allowed(self, items: np.ndarray) -> np.ndarray:
        """Return those of these items [n] that are allowed."""
        if not len(self._ids):
            return items[:0] if self._are_allowed else items
        place = np.searchsorted(self._ids, items.astype(self._ids.dtype)).clip(
            max=len(self._ids) - 1
        )
        return items[(self._ids[place] == items) == self._are_allowed]


def chosen_items(name: str, given: Any, num_items: int) -> np.ndarray:
    """Return items as ascending ids [n].

    Args:
        name: of the argument.
        given: ids in any iterable, tensor or array; a bool for every item; a slice of ids.
        num_items: items of the catalogue.

    Raises:
        TypeError, ValueError: it is none of these, or an id is out of range.
    """
    if isinstance(given, slice):
        given = range(*given.indices(num_items))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"`{name}` must be ids of items, a slice of them or a bool for each, but is {given!r}"
        )
    if isinstance(given, Tensor):
        given = given.cpu().numpy()
    array = np.asarray(given if isinstance(given, np.ndarray | list | range) else list(given))
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, but is {list(array.shape)}")
    if array.dtype == bool:
        if len(array) != num_items:
            raise ValueError(
                f"`{name}` must have a bool for each of {num_items:,} items, but has {len(array):,}"
            )
        return np.flatnonzero(array)
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold ids of items, which are ints, but is {array.dtype}")
    if array.min() < 0 or array.max() >= num_items:
        wrong = int(array.min() if array.min() < 0 else array.max())
        raise ValueError(f"`{name}` must hold ids from 0 to {num_items - 1}, but holds {wrong}")
    return distinct(array, num_items)


def distinct(numbers: np.ndarray, num: int) -> np.ndarray:
    """Return the different ones of these numbers [n] below `num`, ascending."""
    if len(numbers) < FEW * num:
        return np.unique(numbers)
    is_there = np.zeros(num, dtype=bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there)


class Bits:
    """One bit per node, in bytes that fill whole words."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held  # uint8

    @classmethod
    def filled(cls, num: int, value: int) -> Bits:
        num_words = -(-num // (8 * WORD_BYTES))
        return cls(np.full(WORD_BYTES * num_words, value, dtype=np.uint8))

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


class NodeBits(NamedTuple):
    """Which nodes of a tree a search may enter."""

    alive: Bits  # an allowed sequence ends here or below
    ends: Bits  # an allowed sequence ends here

    def words(self) -> np.ndarray:
        """Return all bits as [2 * W] int32, those of `alive` first."""
        return np.concatenate((self.alive.held, self.ends.held)).view(np.int32)


def bits_of_all(levels: Levels) -> NodeBits:
    """All nodes are alive, and all sequences end."""
    return NodeBits(Bits.filled(levels.num_nodes, 255), Bits.of(_flags(levels, levels.end)))


def bits_of(levels: Levels, allowed: np.ndarray) -> NodeBits:
    """These sequences [q], places in `Levels.end`, are all that is allowed."""
    node = levels.end[allowed]
    if len(node) > SPARSE_SHARE * levels.num_nodes:
        return _from_ends(levels, _flags(levels, node))
    bits = NodeBits(Bits.filled(levels.num_nodes, 0), Bits.filled(levels.num_nodes, 0))
    bits.ends.set(node)
    while len(node):
        bits.alive.set(node)
        node = np.unique(levels.parents(node[node > 0]))
    return bits


def bits_without(levels: Levels, every: NodeBits, denied: np.ndarray) -> NodeBits:
    """All but these sequences [q] are allowed; `every` is the result of `bits_of_all`."""
    node = levels.end[denied]
    if len(node) > SPARSE_SHARE * levels.num_nodes:
        ends = _flags(levels, levels.end)
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


def _flags(levels: Levels, nodes: np.ndarray) -> np.ndarray:
    """Return a bool for each node: whether it is one of these."""
    flags = np.zeros(levels.num_nodes, dtype=bool)
    flags[nodes] = True
    return flags


def _from_ends(levels: Levels, ends: np.ndarray) -> NodeBits:
    alive = ends.copy()
    # from the deepest level with children up to the root
    for depth in range(len(levels.start) - 3, -1, -1):
        low, high, top = levels.start[depth : depth + 3]
        # alive nodes before each of the next level
        below = np.zeros(top - high + 1, dtype=np.int32)
        np.cumsum(alive[high:top], out=below[1:])
        # the children of a node are neighbours there
        count = below[levels.first[low : high + 1] - (high - 1)]
        alive[low:high] |= count[1:] > count[:-1]
    return NodeBits(Bits.of(alive), Bits.of(ends))
