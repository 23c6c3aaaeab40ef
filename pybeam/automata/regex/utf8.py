"""How bytes become characters: UTF-8 (RFC 3629) as an automaton that gives the class of each character."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pybeam.automata.regex.character_sets import alike

ROOT = 0
BROKEN = -1
NO_CLASS = 0
BLOCK = 64  # characters that differ in their last byte alone
CONTINUED = slice(0x80, 0xC0)
# by the number of bytes behind the first: first bytes, and the block or group of blocks of the first of them
PAIRS, TRIPLES, QUADRUPLES = slice(0xC2, 0xE0), slice(0xE0, 0xF0), slice(0xF0, 0xF5)


@dataclass(frozen=True, eq=False)
class Utf8:
    """Nodes between the bytes of characters. Node 0 is between characters.

    Attributes:
        node: [N, 256] int32, the node behind a byte; -1: no character of a class but 0 has these bytes.
        character: [N, 256] int32, the class of the character that a byte ends; 0: it ends none.
    """

    node: np.ndarray
    character: np.ndarray

    @classmethod
    def of(cls, class_of: np.ndarray) -> Utf8:
        """Return the smallest one for the classes of all characters, int32 [0x110000]."""
        # a block of characters, 64 blocks and 64 groups of them each have a node, and equals share one
        leaf, block = alike(class_of.reshape(-1, BLOCK))
        nodes = _numbers(leaf != NO_CLASS, 1)
        groups = nodes[block].reshape(-1, BLOCK)
        # shorter forms have these
        groups[0, : PAIRS.stop - 0xC0] = BROKEN
        middle, group = alike(groups)
        middles = _numbers(middle != BROKEN, 1 + len(leaf))
        planes = np.full((QUADRUPLES.stop - QUADRUPLES.start) * BLOCK, BROKEN, dtype=np.int32)
        num_short = TRIPLES.stop - TRIPLES.start
        planes[num_short : len(group)] = middles[group[num_short:]]
        top = planes.reshape(-1, BLOCK)
        tops = _numbers(top != BROKEN, 1 + len(leaf) + len(middle))

        node = np.full((1 + len(leaf) + len(middle) + len(top), 256), BROKEN, dtype=np.int32)
        character = np.full_like(node, NO_CLASS)
        character[ROOT, :0x80] = class_of[:0x80]
        node[ROOT, :0x80] = np.where(class_of[:0x80] == NO_CLASS, BROKEN, ROOT)
        leaves = slice(1, 1 + len(leaf))
        character[leaves, CONTINUED] = leaf
        node[leaves, CONTINUED] = np.where(leaf == NO_CLASS, BROKEN, ROOT)
        node[leaves.stop : leaves.stop + len(middle), CONTINUED] = middle
        node[leaves.stop + len(middle) :, CONTINUED] = top
        node[ROOT, PAIRS] = nodes[block[PAIRS.start - 0xC0 : PAIRS.stop - 0xC0]]
        node[ROOT, TRIPLES] = middles[group[:num_short]]
        node[ROOT, QUADRUPLES] = tops
        return cls(node, character)


def _numbers(is_open: np.ndarray, begin: int) -> np.ndarray:
    """Return the nodes of these rows from `begin` on; -1 where nothing is open."""
    numbers = np.arange(begin, begin + len(is_open), dtype=np.int32)
    return np.where(is_open.any(1), numbers, BROKEN).astype(np.int32)
