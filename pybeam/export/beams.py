"""`Beams`: what one step of a search's graph hands to the next."""

from __future__ import annotations

from typing import NamedTuple

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Value, value
from pybeam.export.hypotheses import DTYPES, INF, RANKS, Hypotheses
from pybeam.export.rules import Rules
from pybeam.export.transformer import KeyValue, Network


class Beams(NamedTuple):
    """The state between two steps, for K entries of each of B sources.

    An entry is a row, which is alive, or a hypothesis that has ended and is held.
    """

    token: Value  # [B, K], the last one
    seen: Value  # [B, K, U] bool, which earlier tokens of its source a row descends from
    found: Value  # [B, 1], hypotheses that have finished
    best: Value  # [B, 1], the best score among them
    is_topped: Value  # [B, 1] bool, whether the best candidate of a step has ended
    live: Hypotheses  # K of them
    finished: Hypotheses  # in the order in which they finished, or best first
    own: list[KeyValue]  # per layer, of U earlier tokens

    @classmethod
    def start(cls, op: Builder, network: Network, rules: Rules, batch: Value) -> Beams:
        """Make the first beam. Every source has K rows, for the sake of the shape, but one score."""
        model, width, num_layers = network.model, rules.width, len(network.model.decoder.layers)
        live = Hypotheses.none(op, batch, width)
        zero = op.Expand(0, op.sizes(batch, 1))
        is_first = op.Equal(op.Add(live.length, op.range(width)), 0)
        cache = op.Expand(0.0, op.sizes(network.num_heads, batch, 0, network.head_size))
        return cls(
            op.Expand(model.start_id, op.sizes(batch, width)),
            op.Cast(op.Expand(0, op.sizes(batch, width, 0)), to=BOOL),
            zero,
            op.Expand(-INF, op.sizes(batch, 1)),
            op.Cast(zero, to=BOOL),
            live._replace(score=op.Where(is_first, 0.0, -INF)),
            Hypotheses.none(op, batch, op.Mul(width, rules.num_kept)),
            [KeyValue(cache, cache) for _ in range(num_layers)],
        )

    @classmethod
    def inputs(cls, num_layers: int) -> Beams:
        """Make the inputs of a graph that takes this state."""
        dtypes = [INT, BOOL, INT, FLOAT, BOOL, *2 * DTYPES, *2 * num_layers * (FLOAT,)]
        ranks = [2, 3, 2, 2, 2, *2 * RANKS, *2 * num_layers * (4,)]
        return cls.of(
            [
                value(f"state.{i}", dtype, *(f"state.{i}.{axis}" for axis in range(rank)))
                for i, (dtype, rank) in enumerate(zip(dtypes, ranks, strict=True))
            ]
        )

    @classmethod
    def of(cls, values: list[Value]) -> Beams:
        """The state whose `values` these are."""
        num, size = len(cls._fields) - 3, len(Hypotheses._fields)
        live, finished = values[num : num + size], values[num + size : num + 2 * size]
        caches = values[num + 2 * size :]
        pairs = [KeyValue(*caches[i : i + 2]) for i in range(0, len(caches), 2)]
        token, seen, found, best, is_topped = values[:num]
        beams = Hypotheses(*live), Hypotheses(*finished)
        return cls(token, seen, found, best, is_topped, *beams, pairs)

    def values(self) -> list[Value]:
        """All tensors, in order."""
        caches = (one for pair in self.own for one in pair)
        return [*self[:-3], *self.live, *self.finished, *caches]
