"""The committed prefix: what the best hypothesis of a search that still runs is certain to begin with.

At any time the best hypothesis to come is either the best of those that have finished or a continuation
of an entry of the beam, and entries continue entries. So the tokens that all of these share are never
taken back, and they only grow. A worse finished hypothesis stays worse and plays no part.
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
# final scores of the device and of the host may differ by this share of their terms
ROUNDING = 1e-5


def committed(tree: TokenTree, beams: Beams, slot: Tensor, capacity: int) -> Tensor:
    """[A, capacity] int32: the committed prefixes of slots [A], start token first, then -1.

    `capacity` is at least the tokens of any row, start included. Nothing is read back, and no size
    depends on data. What is said of a slot whose source is done means nothing.
    """
    i = slot.long()
    width = beams.score.shape[1]
    place = torch.arange(width, dtype=torch.int32, device=slot.device)
    is_entry = place < beams.num_entries[i][:, None]  # [A, K]
    winner, has_winner, is_decided = _winner(beams, i)
    node = torch.cat((tree.row_node[i], winner[:, None]), 1)  # [A, K + 1]
    is_one = torch.cat((is_entry, has_winner[:, None]), 1)
    node = torch.where(is_one, node, node[:, :1])
    owner = slot[:, None].expand(-1, width + 1).reshape(-1)
    paths = tree.paths(owner, node.view(-1), capacity).view(-1, width + 1, capacity)
    first = paths[:, 0]  # [A, capacity]
    differs = (paths != first[:, None]).any(1) | (first < 0)
    is_shared = (differs.cumsum(1) == 0) & is_decided[:, None]
    return torch.where(is_shared, first, -1)


def _winner(beams: Beams, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The node of the best finished hypothesis [A], whether there is one, and whether it is decided.

    The host ranks in another arithmetic, so it is not while another one comes as near as rounding may
    move it. Equal ones of equal length rank alike there, in the order of finishing.
    """
    final, length = beams.finished_final[i], beams.finished_length[i]  # [A, F]
    score = beams.finished_score[i]
    place = torch.arange(final.shape[1], dtype=torch.int32, device=i.device)
    is_there = place < beams.num_finished[i][:, None]
    final = torch.where(is_there, final, -INF)
    best = final.amax(1, keepdim=True)  # [A, 1]
    first = torch.where(final == best, place, place.numel()).amin(1, keepdim=True).long()
    own_length, own_score = length.gather(1, first), score.gather(1, first)
    reward = beams.reward[i][:, None].abs()
    slack = ROUNDING * (best.abs() + 2 * reward * own_length)
    slack = slack * ((beams.alpha[i] != 0) | (beams.reward[i] != 0))[:, None]
    is_rival = is_there & (final >= best - slack) & ((score != own_score) | (length != own_length))
    return (
        beams.finished_node[i].gather(1, first)[:, 0],
        beams.num_finished[i] > 0,
        ~is_rival.any(1),
    )


def lengthened(
    sources: list[Source | None], is_done: np.ndarray, prefixes: np.ndarray
) -> list[Partial]:
    """The committed prefixes [A, capacity] that are longer than what was said of their sources before.

    A source is None where it has left; one that is done has a result instead.
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
