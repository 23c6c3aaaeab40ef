"""Greedy search and prefix beam search over the frames of CTC, for many sources at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError, at_most, real, whole
from pybeam.contracts import MAX_WIDTH
from pybeam.ctc.alignment import most_probable
from pybeam.ctc.frames import kernels, no_numbers, on_host


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output of a source.

    Attributes:
        tokens: ids, without blanks.
        log_prob: of the paths that say it: of one path, or of all that the beam has kept.
    """

    tokens: tuple[int, ...]
    log_prob: float


def greedy(
    log_probs: Tensor, lengths: Sequence[int] | Tensor | None = None, *, blank: int = 0
) -> list[Hypothesis]:
    """Take the most probable token of each frame, and return what this path says.

    The first of equally probable tokens is taken. A source without frames says nothing.

    Args:
        log_probs: [B, T, V] floats, of each token in each frame.
        lengths: [B] frames of each source; nothing behind them is read. None: all T.
        blank: the token that stands for none.

    Returns:
        A hypothesis for each source, with the log-probability of its path.

    Raises:
        TypeError, ValueError: an argument has another shape or type, or holds NaN or +inf.
    """
    log_probs, length = on_host(log_probs, lengths, blank)
    found = []
    for i, (frames, num) in enumerate(zip(log_probs, length.tolist(), strict=True)):
        spans, total = most_probable(frames[:num], blank, i)
        found.append(Hypothesis(tuple(span.token for span in spans), total))
    return found


# each is a part of the search
def beam_search(
    log_probs: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    width: int,
    n_best: int = 1,
    blank: int = 0,
    max_tokens: int | None = None,
    threshold: float = math.inf,
    backend: str = "auto",
) -> list[list[Hypothesis]]:
    """Search for the most probable outputs, each with the probability of all its paths: prefix beam search.

    After each frame the beam holds the `width` most probable prefixes, where ``p(l) = p_b(l) + p_n(l)`` sums
    over paths that end in a blank, and in the last token of l. With y of the next frame, and p_b and p_n of
    prefixes that are not in the beam taken as 0,

    * ``p_b'(l) = p(l) y(blank)``;
    * ``p_n'(l + c) = p_n(l + c) y(c) + q y(c)``, where q is ``p_b(l)`` if c is the last token of l, else
      ``p(l)``.

    Sums are float64. Where scores are equal, these come first: prefixes that stay, in their order; then
    those with one token more, by the rank of what they continue, then by y, then by token. With a beam as
    wide as there are outputs, the result is exact. Results depend neither on the other sources nor on
    threads.

    Args:
        log_probs: [B, T, V] floats, of each token in each frame.
        lengths: [B] frames of each source; nothing behind them is read. None: all T.
        width: prefixes that are kept, 1 to 4,096.
        n_best: outputs of each source at most.
        blank: the token that stands for none.
        max_tokens: in each frame only so many of the most probable tokens begin; None: any.
        threshold: prefixes this many nats below the best one, or more, are dropped after each frame.
        backend: "native" (C++), "reference" (Python), or "auto".

    Returns:
        For each source its hypotheses, the best first. There are fewer than `n_best` where fewer have a
        probability above 0.

    Raises:
        TypeError, ValueError: an argument is out of range, has another shape or type, or holds NaN or +inf.

    See Graves et al. 2006, section 3.2, and Hannun et al. 2014 (arXiv:1408.2873).
    """
    whole("width", width, 1, MAX_WIDTH)
    whole("n_best", n_best, 1)
    at_most("n_best", n_best, "`width`", width, "widen the beam or ask for fewer")
    if max_tokens is not None:
        whole("max_tokens", max_tokens, 1)
    real("threshold", threshold)
    if not threshold > 0:
        raise ArgumentError("threshold", f"must be greater than 0 nats, but is {threshold}")
    frames, length = on_host(log_probs, lengths, blank)
    if width * (frames.shape[1] + 1) > LARGEST_INT32:
        raise ArgumentError(
            "width",
            f"* frames must be less than 2**31, but is {width} * {frames.shape[1]}; cut the sources",
        )
    most = LARGEST_INT32 if max_tokens is None else max_tokens
    how: tuple[Any, ...] = (blank, width, n_best, most, float(threshold))
    tokens, sizes, scores, count = kernels(backend).beam_search(frames, length, *how)
    wrong = (count < 0).nonzero()
    if len(wrong):
        raise no_numbers(int(wrong[0]))
    return [
        [
            Hypothesis(tuple(line[:size].tolist()), score)
            for line, size, score in zip(own[:num], own_sizes[:num], own_scores[:num], strict=True)
        ]
        for own, own_sizes, own_scores, num in zip(
            tokens, sizes.tolist(), scores.tolist(), count.tolist(), strict=True
        )
    ]
