"""`Levels`: sequences as a tree in flat arrays, built level by level from ragged arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# bits of a sort key; the last one is the sign
KEY_BITS = 63
MAX_EDGES = 2**31 - 2

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


class Levels(NamedTuple):
    """A tree of sequences. Node 0 is the root, and edge e leads to node e + 1.

    Nodes are numbered by depth and, within it, in lexical order. So the edges of a node are neighbours, and
    so are its descendants of each depth. The nodes of the deepest level, of which there are most, have no
    place in `first`.
    """

    token: np.ndarray  # [E] int32, of every edge; ascending among those of one node
    # [F + 1] int32, edges of node n < F are first[n] .. first[n + 1]; others have none
    first: np.ndarray
    end: np.ndarray  # [Q] int32, ascending: the nodes where a sequence ends
    start: np.ndarray  # [depths + 1] int64, the first node of every depth, then the number of nodes

    @property
    def num_nodes(self) -> int:
        return len(self.token) + 1

    def edges(self, node: int) -> tuple[int, int]:
        """The edges of a node, the second one exclusive."""
        last = len(self.first) - 1
        return int(self.first[min(node, last)]), int(self.first[min(node + 1, last)])

    def parents(self, node: np.ndarray) -> np.ndarray:
        """The parents [n] of these nodes [n], none of them the root."""
        # of the same dtype, or numpy would copy all of `first`
        edge = (node - 1).astype(self.first.dtype)
        return np.searchsorted(self.first, edge, side="right") - 1


class Built(NamedTuple):
    """A tree, and which items its sequences are."""

    levels: Levels
    items: np.ndarray  # [n] int32, grouped by sequence in the order of `Levels.end`, ascending
    first_item: np.ndarray  # [Q + 1] int32, items of sequence q are items[first_item[q] ..]


def build(values: np.ndarray, offsets: np.ndarray, report: Progress | None = None) -> Built:
    """Build the tree of ragged sequences.

    Args:
        values: [T] int32, all tokens, at least 0.
        offsets: [n + 1] int64; sequence i is values[offsets[i] .. offsets[i + 1]] and not empty.
        report: is told what is done.

    Raises:
        ValueError: there are more edges than fit into 32 bits.
    """
    order = lexical_order(values, offsets, report)
    begin = offsets[:-1][order]  # [n], shrinks to the sequences that go on
    length = np.diff(offsets)[order]
    node = np.zeros(len(order), dtype=np.int32)  # each sequence's node at the present depth
    longest = int(length.max())
    tokens, counts, items, ends = [], [], [], []
    start, num_nodes = [0], 1
    for depth in range(longest):
        token = values[begin + depth]
        is_new = np.ones(len(token), dtype=bool)
        np.not_equal(token[1:], token[:-1], out=is_new[1:])
        is_new[1:] |= node[1:] != node[:-1]
        new = np.flatnonzero(is_new)
        if num_nodes + len(new) > MAX_EDGES:
            raise ValueError(
                f"`items` must have at most {MAX_EDGES:,} different beginnings in all, but have more; "
                "divide them among several catalogues"
            )
        tokens.append(token[new])
        # children of every node of this depth
        counts.append(np.bincount(node[new] - start[-1], minlength=num_nodes - start[-1]))
        node = (np.cumsum(is_new, dtype=np.int32) + (num_nodes - 1)).astype(np.int32)
        start.append(num_nodes)
        num_nodes += len(new)
        has_ended = length == depth + 1
        if has_ended.any():
            items.append(order[has_ended].astype(np.int32))
            ends.append(node[has_ended])
            goes_on = ~has_ended
            order, begin, length, node = (a[goes_on] for a in (order, begin, length, node))
        if report is not None:
            report("levels", depth + 1, longest)
    first = np.zeros(start[-1] + 1, dtype=np.int32)
    np.cumsum(np.concatenate(counts), out=first[1:])
    end, first_item = _grouped(np.concatenate(ends))
    levels = Levels(np.concatenate(tokens), first, end, np.array([*start, num_nodes]))
    return Built(levels, np.concatenate(items), first_item)


def _grouped(node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers among ascending ones [n], and where each begins, then n."""
    is_new = np.ones(len(node), dtype=bool)
    np.not_equal(node[1:], node[:-1], out=is_new[1:])
    place = np.flatnonzero(is_new)
    return node[place], np.append(place, len(node)).astype(np.int32)


def lexical_order(
    values: np.ndarray, offsets: np.ndarray, report: Progress | None = None
) -> np.ndarray:
    """The places [n] of ragged sequences in lexical order; equal ones keep theirs.

    Neighbouring tokens are packed into one number. Those that are equal in it are sorted by the next.
    """
    length = np.diff(offsets)
    bits = (int(values.max()) + 1).bit_length()
    per_key = max(1, KEY_BITS // bits)
    longest = int(length.max())

    def key(some: np.ndarray, depth: int) -> np.ndarray:
        packed = np.zeros(len(some), dtype=np.int64)
        begin, own = offsets[some], length[some]
        for d in range(depth, min(depth + per_key, longest)):
            packed <<= bits
            has_token = own > d
            # a sequence that has ended comes first
            packed += np.where(
                has_token, values[np.where(has_token, begin + d, 0)] + np.int64(1), 0
            )
        return packed

    if report is not None:
        report("sort", 0, longest)
    order = np.arange(len(length))
    packed = key(order, 0)
    order = np.argsort(packed, kind="stable")
    packed = packed[order]
    tied = np.arange(len(order))  # places in `order` that are not certain
    group = np.zeros(len(order), dtype=np.int64)
    for depth in range(per_key, longest + per_key, per_key):
        differs = np.ones(len(tied) + 1, dtype=bool)
        differs[1:-1] = (packed[1:] != packed[:-1]) | (group[1:] != group[:-1])
        is_tied = ~(differs[:-1] & differs[1:])
        if report is not None:
            report("sort", min(depth, longest), longest)
        if depth >= longest or not is_tied.any():
            break
        group = np.cumsum(differs[:-1])[is_tied]
        tied = tied[is_tied]
        some = order[tied]
        packed = key(some, depth)
        own = np.lexsort((packed, group))
        order[tied], packed = some[own], packed[own]
    return order
