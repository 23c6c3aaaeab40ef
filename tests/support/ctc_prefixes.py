"""Prefix scores of CTC in plain Python, one hypothesis at a time, by Watanabe et al. 2017, algorithm 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

INF = math.inf
Frames = Sequence[Sequence[float]]


def log_sum(*terms: float) -> float:
    peak = max(terms, default=-INF)
    return peak if peak == -INF else peak + math.log(sum(math.exp(x - peak) for x in terms))


def forward(frames: Frames, said: Sequence[int], blank: int) -> list[tuple[float, float]]:
    """Return log r_n and log r_b of what is said, behind each number of frames."""
    if not said:
        silent = [0.0]
        for frame in frames:
            silent.append(silent[-1] + frame[blank])
        return [(-INF, one) for one in silent]
    *earlier, token = said
    before = forward(frames, earlier, blank)
    found = [(-INF, -INF)]
    for t, frame in enumerate(frames):
        free = before[t][1] if earlier[-1:] == [token] else log_sum(*before[t])
        r_n, r_b = found[-1]
        x = -INF if token == blank else frame[token]
        found.append((log_sum(r_n, free) + x, log_sum(r_n, r_b) + frame[blank]))
    return found


def prefix_score(frames: Frames, said: Sequence[int], blank: int) -> float:
    """Return log psi of what is said."""
    if not said:
        return 0.0
    *earlier, token = said
    if token == blank:
        return -INF
    before = forward(frames, earlier, blank)
    repeats = earlier[-1:] == [token]
    begins = [
        (r_b if repeats else log_sum(r_n, r_b)) + frame[token]
        for (r_n, r_b), frame in zip(before, frames, strict=False)
    ]
    return log_sum(*begins)


def whole_score(frames: Frames, said: Sequence[int], blank: int) -> float:
    """Return the log-probability of what is said, and no more."""
    return log_sum(*forward(frames, said, blank)[-1])


def mixed(
    row: list[float],
    frames: Frames,
    said: Sequence[int],
    weight: float,
    blank: int,
    eos_ids: Sequence[int],
    pre_beam: int | None = None,
) -> list[float]:
    """Return what the decoder's log-probabilities become behind a hypothesis."""
    before = prefix_score(frames, said, blank)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    scored = {*order[:pre_beam], *eos_ids}
    found = []
    for token, x in enumerate(row):
        if token in eos_ids:
            own = whole_score(frames, said, blank)
        else:
            own = prefix_score(frames, [*said, token], blank) if token in scored else -INF
        gain = -INF if own == -INF or before == -INF else own - before
        found.append(x if x == -INF else (1 - weight) * x + weight * gain)
    return found
