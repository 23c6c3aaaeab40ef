"""Searches in plain Python, one source at a time, written from the rules and not from our code.

A `step` function maps generated tokens to a list of ``(token, log_prob)`` in the order of the
row: logit descending, then token ascending, impossible tokens left out. Scores are float32, so that
exact comparison is possible.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pybeam import ops
from support.search_models import EOS, next_logits


@dataclass
class Found:
    tokens: list[int]
    score: float
    length: int
    ended: bool


def ranked_log_probs(model, source: int, backend: str):
    """The `step` function of one source of a `FunctionModel`, with the backend's own log-probs."""
    known = {}

    def step(tokens: list[int]):
        key = tuple(tokens)
        if key not in known:
            logits = next_logits(model, source, tokens)[None]
            row = ops.select(
                logits,
                torch.zeros(1),
                torch.tensor([0, 1], dtype=torch.int32),
                width=torch.tensor([logits.shape[1]], dtype=torch.int32),
                backend=backend,
            )
            n = int(row.count[0])
            tokens_out, values = row.token[0, :n].tolist(), row.log_prob[0, :n].numpy()
            known[key] = list(zip(tokens_out, values, strict=True))
        return known[key]

    return step


def every_sequence(step, max_length: int) -> list[Found]:
    """All sequences that end in EOS within max_length tokens."""
    found, open_ = [], [Found([], np.float32(0), 0, False)]
    for length in range(1, max_length + 1):
        longer = []
        for row in open_:
            for token, log_prob in step(row.tokens):
                score = np.float32(row.score + log_prob)
                if token == EOS:
                    found.append(Found(row.tokens, score, length, True))
                else:
                    longer.append(Found([*row.tokens, token], score, length, False))
        open_ = longer
    return found


def huang(
    step,
    width: int,
    n_best: int,
    final,
    bound,
    *,
    max_length: int,
    refills: bool = False,
    ended_only: bool = True,
):
    """Optimal beam search of Huang et al. 2017, one equation after another.

    Returns what it found, why it stopped, and when.

    Their beam ``B_i`` is the best `width` extensions of what has not ended in ``B_{i-1}``, and those of
    it that have ended are candidates for the best. With `refills` they are not part of the beam: the
    `width` best extensions that have not ended are, out of ``2 * width``.

    ``final(score, length)`` ranks; ``bound(score, length)`` is the most that a live row of that score and
    length can still reach. The best `width` of those that have ended are kept. At the limit rows count as
    they are, unless `ended_only`.
    """
    beam = [Found([], np.float32(0), 0, False)]
    finished: list[Found] = []

    def keep(some: list[Found]) -> None:
        finished.extend(some)
        finished.sort(key=lambda found: -final(found.score, found.length))  # stable
        del finished[width:]

    for length in range(1, max_length + 1):
        extensions = []
        for parent, row in enumerate(beam):
            for place, (token, log_prob) in enumerate(step(row.tokens)):
                score = np.float32(row.score + log_prob)
                ends = token == EOS
                tokens = row.tokens if ends else [*row.tokens, token]
                extensions.append(((-score, parent, place), Found(tokens, score, length, ends)))
        ranked = [found for _, found in sorted(extensions, key=lambda pair: pair[0])]
        keep([found for found in ranked[:width] if found.ended])
        seen = ranked[: 2 * width] if refills else ranked[:width]
        beam = [found for found in seen if not found.ended][:width]
        best = max((bound(row.score, length) for row in beam), default=-np.inf)
        is_certain = len(finished) >= n_best and (
            final(finished[n_best - 1].score, finished[n_best - 1].length) >= best
        )
        reason = "optimal" if is_certain else "empty_beam" if not beam else ""
        if length == max_length and not ended_only:
            keep(beam)
        if reason:
            return finished, reason, length
    return finished, "max_length", max_length
