"""Partial results: the tokens that the best hypothesis is certain to begin with, while the search runs.

The best hypothesis will be either the best one that has finished or a continuation of an entry of the beam.
So the tokens that all of these share are certain: they are never taken back, and only grow. A worse finished
hypothesis stays worse and does not matter.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import Beams
from pybeam.engine.source import Source
from pybeam.kvcache.token_tree import TokenTree
from pybeam.request import Partial

INF = float("inf")


def stable_prefix(tree: TokenTree, beams: Beams, slot: Tensor, capacity: int) -> Tensor:
    """Return the stable prefixes of slots [A] as [A, capacity] int32, start token first, padded with -1.

    `capacity` is at least the number of tokens of any row, start token included. Nothing is read back, and no
    size depends on data. The prefix of a slot whose source is done has no meaning.
    """
    i = slot.long()
    width = beams.score.shape[1]
    place = torch.arange(width, dtype=torch.int32, device=slot.device)
    is_entry = place < beams.num_entries[i][:, None]  # [A, K]
    node = torch.cat((tree.row_node[i], _best_finished_node(beams, i)[:, None]), 1)  # [A, K + 1]
    is_one = torch.cat((is_entry, beams.num_finished[i][:, None] > 0), 1)
    node = torch.where(is_one, node, node[:, :1])
    owner = slot[:, None].expand(-1, width + 1).reshape(-1)
    paths = tree.paths(owner, node.view(-1), capacity).view(-1, width + 1, capacity)
    first = paths[:, 0]  # [A, capacity]
    differs = (paths != first[:, None]).any(1) | (first < 0)
    return torch.where(differs.cumsum(1) == 0, first, -1)


def _best_finished_node(beams: Beams, i: Tensor) -> Tensor:
    """Return the node [A] of the best finished hypothesis, if any, the first among equal ones."""
    final = beams.finished_final[i]  # [A, F]
    place = torch.arange(final.shape[1], dtype=torch.int32, device=i.device)
    is_there = place < beams.num_finished[i][:, None]
    best = torch.where(is_there, final, -INF).amax(1, keepdim=True)  # [A, 1]
    is_best = is_there & (final == best)
    first = torch.where(is_best, place, final.shape[1] - 1).amin(1, keepdim=True).long()
    return beams.finished_node[i].gather(1, first)[:, 0]


def new_partials(
    sources: list[Source | None], is_done: np.ndarray, prefixes: np.ndarray
) -> list[Partial]:
    """Yield the stable prefixes [A, capacity] that have grown since the last `Partial` of their sources.

    A source is None if it has left. A source that is done has a result instead.
    """
    partials = []
    lengths = (prefixes >= 0).sum(1) - 1
    each = zip(sources, is_done.tolist(), lengths.tolist(), prefixes, strict=True)
    for source, is_late, length, tokens in each:
        if source is None or is_late or source.target or length <= source.num_committed:
            continue
        if source.algorithm.scoring.coverage:
            continue  # ranks what has finished in the end
        source.num_committed = length
        partials.append(Partial(source.index, source.request.id, tokens[1 : length + 1].tolist()))
    return partials
