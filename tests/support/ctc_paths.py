"""CTC by its definition: all paths, one by one, in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

INF = math.inf
Frames = Sequence[Sequence[float]]


def said(path: Iterable[int], blank: int) -> tuple[int, ...]:
    """Return what a path says."""
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def paths(frames: Frames) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield all paths, each with its log-probability."""
    sizes = [range(len(frame)) for frame in frames]
    for path in itertools.product(*sizes):
        yield path, math.fsum(frame[token] for frame, token in zip(frames, path, strict=True))


def outputs(frames: Frames, blank: int = 0) -> dict[tuple[int, ...], float]:
    """Return every output, with the log-probability of all paths that say it."""
    found: dict[tuple[int, ...], float] = {}
    for path, score in paths(frames):
        if score > -INF:
            tokens = said(path, blank)
            found[tokens] = found.get(tokens, 0.0) + math.exp(score)
    return {tokens: math.log(p) for tokens, p in found.items() if p > 0}


def prefix_score(frames: Frames, prefix: Sequence[int], blank: int = 0) -> float:
    """Return the log-probability of all outputs that begin with a prefix."""
    prefix = tuple(prefix)
    p = sum(
        math.exp(score)
        for tokens, score in outputs(frames, blank).items()
        if tokens[: len(prefix)] == prefix
    )
    return math.log(p) if p > 0 else -INF
