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


def yang(
    step,
    width: int,
    *,
    threshold=np.inf,
    max_candidates=10**9,
    relative=0.0,
    local=0.0,
    max_length: int,
    stop_at: int,
):
    """Variable-width beam search with held EOS (Yang et al. 2020)."""
    beam = [Found([], np.float32(0), 0, False)]
    popped: list[Found] = []
    best_popped = -np.inf
    for length in range(1, max_length + 1):
        candidates = []  # (score, parent, rank, log_prob, hypothesis)
        for parent, row in enumerate(beam):
            if row.ended:
                candidates.append((row.score, parent, 0, None, row))
                continue
            for rank, (token, log_prob) in enumerate(step(row.tokens)[:max_candidates]):
                score = np.float32(row.score + log_prob)
                ended = token == EOS
                tokens = row.tokens if ended else [*row.tokens, token]
                candidates.append(
                    (score, parent, rank, log_prob, Found(tokens, score, length, ended))
                )
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        candidates = candidates[: width - len(popped)]
        while candidates and candidates[0][4].ended:
            popped.append(candidates.pop(0)[4])
            best_popped = max(best_popped, popped[-1].score)
        if len(popped) >= stop_at:
            return popped, "stop"
        best = max([best_popped] + [c[0] for c in candidates])
        last = [c[3] for c in candidates if c[3] is not None]
        margin = np.float32(min(threshold, -np.log(relative) if relative else np.inf))
        local_margin = np.float32(-np.log(local) if local else np.inf)
        beam = [
            c[4]
            for c in candidates
            if c[0] > np.float32(best) - margin
            and (c[3] is None or c[3] > np.float32(max(last)) - local_margin)
        ]
        if all(row.ended for row in beam):
            return popped + beam, "empty_beam"
    return popped + beam, "max_length"


def fairseq(step, width: int, *, max_length: int):
    """fairseq's finishing rule; None if the length limit was reached."""
    beam = [Found([], np.float32(0), 0, False)]
    finished: list[Found] = []
    for length in range(1, max_length + 1):
        candidates = []
        for parent, row in enumerate(beam):
            for rank, (token, log_prob) in enumerate(step(row.tokens)):
                score = np.float32(row.score + log_prob)
                candidates.append((score, parent, rank, token, row))
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        candidates = candidates[: 2 * width]
        for score, _, _, token, row in candidates[:width]:
            if token == EOS and len(finished) < width:
                finished.append(Found(row.tokens, score, length, True))
        if len(finished) == width:
            return finished
        going_on = [c for c in candidates if c[3] != EOS][:width]
        beam = [
            Found([*row.tokens, token], score, length, False)
            for score, _, _, token, row in going_on
        ]
        if not beam:
            return finished
    return None


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
    """Optimal beam search of Huang et al. 2017, one equation after another; returns the found, why, when.

    Their beam ``B_i`` is the best `width` extensions of what has not ended in ``B_{i-1}``, and those of
    it that have ended are candidates for the best. With `refills` they are not part of the beam: the
    `width` best extensions that have not ended are, out of ``2 * width``.

    ``final(score, length)`` ranks; ``bound(score, length)`` is the most that a live row of that score and
    length can still reach. Of what has ended the best `width` are kept. At the limit rows count as they
    are, unless `ended_only`.
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
