"""Partial results: the tokens that the best hypothesis is certain to begin with, while the search runs.

The best hypothesis will be either the best one that has finished or a continuation of an entry of the beam.
So the tokens that all of these share are certain: they are never taken back, and only grow. A worse finished
hypothesis stays worse and does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import Beams
from pybeam.backends.transfer import to_device
from pybeam.engine.arrivals import Watch
from pybeam.engine.live_sources import LiveSources
from pybeam.engine.source import Source
from pybeam.kvcache.token_tree import TokenTree
from pybeam.request import Partial
from pybeam.state.beam_state import BeamState

INF = float("inf")


class PartialReader(NamedTuple):
    """Numbers of watched sources, read after a step behind the report on all live ones."""

    sources: list[Source]
    slot: Tensor  # [W] int32, theirs
    with_best: list[Source]  # those of them whose best row is read too
    capacity: int  # tokens per path

    @classmethod
    def at(cls, live: LiveSources, capacity: int) -> PartialReader:
        """Choose what to read of the live sources, whose rows have at most `capacity` tokens."""
        sources = [source for source in live if source.watch]
        slot = live.slot
        if len(sources) < len(live):
            slot = to_device([source.slot for source in sources], torch.int32, slot.device)
        with_best = [source for source in sources if source.watch == Watch.BEST]
        return cls(sources, slot, with_best, capacity)

    def read(self, state: BeamState) -> Tensor:
        """Return the stable prefixes, then the best rows, each [capacity] int32, in one line."""
        read = [stable_prefix(state.tree, state.beams, self.slot, self.capacity).view(-1)]
        if self.with_best:
            slots = [source.slot for source in self.with_best]
            read.append(best_rows(state, slots, self.capacity).view(-1))
        return torch.cat(read)

    def partials(self, numbers: np.ndarray, is_live: Callable[[Source], bool]) -> list[Partial]:
        """Make the partial results of live sources that have new ones. `numbers` end with what was read."""
        paths = numbers[-self.capacity * (len(self.sources) + len(self.with_best)) :]
        lines = paths.reshape(-1, self.capacity)
        tokens = [
            line[1 : 1 + size].tolist()
            for line, size in zip(lines, ((lines >= 0).sum(1) - 1).tolist(), strict=True)
        ]
        best = dict(zip((s.slot for s in self.with_best), tokens[len(self.sources) :], strict=True))
        pairs = zip(self.sources, tokens, strict=False)
        made = (_partial(s, own, best.get(s.slot)) for s, own in pairs if is_live(s))
        return [partial for partial in made if partial is not None]


def _partial(source: Source, certain: list[int], best: list[int] | None) -> Partial | None:
    """Return what is new about a source since its last partial result, if anything is."""
    # while a prefix is scored, fewer tokens are certain than are known
    if len(certain) < source.num_committed:
        return None
    if len(certain) == source.num_committed and best == source.best:
        return None
    source.num_committed, source.best = len(certain), best
    return Partial(source.index, source.request.id, certain, best)


def best_rows(state: BeamState, slots: Sequence[int], capacity: int) -> Tensor:
    """Return the tokens of the best rows of slots [A], as `TokenTree.paths` does: [A, capacity] int32.

    A slot without rows has none.
    """
    slot, tree = to_device(slots, torch.int32, state.device), state.tree
    i = slot.long()
    best = torch.where(state.beams.num_entries[i] > 0, tree.row_node[i, 0], -1)
    return tree.paths(slot, best, capacity)


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
    # a slot without rows has no first one
    first = torch.where(is_entry[:, :1], node[:, :1], -1)
    node = torch.where(is_one, node, first)
    owner = slot[:, None].expand(-1, width + 1).reshape(-1)
    paths = tree.paths(owner, node.view(-1), capacity).view(-1, width + 1, capacity)
    first = paths[:, 0]  # [A, capacity]
    differs = (paths != first[:, None]).any(1)
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
