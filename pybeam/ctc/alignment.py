"""`align`: which frames belong to the tokens of an output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from torch import Tensor

from pybeam.arguments import ArgumentError, check_list, ids
from pybeam.ctc.frames import kernels, no_numbers, on_host, padded

# of the moves of a source's paths, which are kept until the best one is known
MOST_BYTES = 2**31


class Span(NamedTuple):
    """The frames that say a token, on the most probable path.

    Attributes:
        token: its id.
        start, end: the first frame, and the one behind the last.
        log_prob: the mean over these frames.
    """

    token: int
    start: int
    end: int
    log_prob: float


def align(
    log_probs: Tensor,
    tokens: Iterable[Sequence[int]],
    lengths: Sequence[int] | Tensor | None = None,
    *,
    blank: int = 0,
    backend: str = "auto",
) -> list[list[Span]]:
    """Find the most probable path that says given tokens (Viterbi), and return the frames of each token.

    Equal tokens that follow each other have a blank between them. Where paths are equal, the one is
    taken whose last token ends in the last frame, and else the one that moves less from frame to frame,
    looked at from the end. T frames and L tokens take T (2 L + 1) bytes.

    Args:
        log_probs: [B, T, V] floats, of each token in each frame.
        tokens: for each source the ids of its output.
        lengths: [B] frames of each source; nothing behind them is read. None: all T.
        blank: the token that stands for none.
        backend: "native" (C++), "reference" (Python), or "auto".

    Returns:
        For each source a span for each token.

    Raises:
        TypeError, ValueError: an argument has another shape or type, holds NaN or +inf, or no path says the
            tokens of a source, because there are too few frames or because its probability is 0; or a source
            takes more than 2**31 bytes.
    """
    frames, length = on_host(log_probs, lengths, blank)
    check_list("tokens", tokens)
    lists = [ids("tokens", one) for one in tokens]
    if len(lists) != len(length):
        raise ArgumentError(
            "tokens",
            f"must be a list for each of {len(length)} sources, but there are {len(lists)}",
        )
    for one in lists:
        if blank in one:
            raise ArgumentError("tokens", f"must not hold the blank, {blank}; leave it out")
        if max(one, default=0) >= frames.shape[2]:
            raise ArgumentError(
                "tokens", f"must be 0 to {frames.shape[2] - 1}, but one is {max(one)}"
            )
    for i, (num, one) in enumerate(zip(length.tolist(), lists, strict=True)):
        size = num * (2 * len(one) + 1)
        if size > MOST_BYTES:
            raise ArgumentError(
                "log_probs",
                f"must be of shorter sources: the paths of source {i}, with {num} frames and {len(one)} "
                f"tokens, take {size} bytes, more than 2**31; cut it where nobody speaks",
            )
    spans, scores, total = kernels(backend).align(frames, length, *padded(lists), blank)
    for i, score in enumerate(total.tolist()):
        if math.isnan(score):
            raise no_numbers(i)
        if score == -math.inf:
            raise ArgumentError(
                "tokens",
                f"must be what {int(length[i])} frames can say, but those of source {i} are not",
            )
    return [
        [
            Span(token, start, end, score / (end - start))
            for token, (start, end), score in zip(own, places, sums, strict=False)
        ]
        for own, places, sums in zip(lists, spans.tolist(), scores.tolist(), strict=True)
    ]


def most_probable(frames: Tensor, blank: int, source: int) -> tuple[list[Span], float]:
    """Return the spans of the most probable path of frames [T, V], and the path's log-probability.

    Raises:
        ValueError: the frames hold NaN or +inf; the message names `source`.
    """
    if not (frames < math.inf).all():
        raise no_numbers(source)
    best = frames.max(1)
    values = best.values.tolist()
    spans, start = [], 0
    for token, run in groupby(best.indices.tolist()):
        end = start + len(list(run))
        if token != blank:
            spans.append(Span(token, start, end, sum(values[start:end]) / (end - start)))
        start = end
    return spans, float(best.values.double().sum())
