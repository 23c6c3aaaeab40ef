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


def huang(step, width: int, n_best: int, final, bound, *, max_length: int, stops: bool = True):
    """Refilled beam that keeps the best `width` finished; optimal stop of Huang et al. 2017.

    ``final(score, length)`` ranks; ``bound(score, length)`` is the most that a live row of that score and
    length can still reach. Returns what was found, why it stopped, and after how many steps.
    """
    beam = [Found([], np.float32(0), 0, False)]
    finished: list[Found] = []

    def rank():
        finished.sort(key=lambda found: -final(found.score, found.length))  # stable
        del finished[width:]

    for length in range(1, max_length + 1):
        candidates = []
        for parent, row in enumerate(beam):
            for place, (token, log_prob) in enumerate(step(row.tokens)):
                score = np.float32(row.score + log_prob)
                candidates.append((score, parent, place, token, row))
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        candidates = candidates[: 2 * width]
        finished += [
            Found(row.tokens, score, length, True)
            for score, _, _, token, row in candidates[:width]
            if token == EOS
        ]
        rank()
        beam = [
            Found([*row.tokens, token], score, length, False)
            for score, _, _, token, row in [c for c in candidates if c[3] != EOS][:width]
        ]
        best = max((bound(row.score, length) for row in beam), default=-np.inf)
        if stops and len(finished) >= n_best:
            worst = finished[n_best - 1]
            if final(worst.score, worst.length) >= best:
                return finished, "optimal", length
        if not beam:
            return finished, "empty_beam", length
    finished += beam
    rank()
    return finished, "max_length", max_length
