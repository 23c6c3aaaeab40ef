"""Attention of finished hypotheses over their source, and the coverage penalty that it gives.

It is computed after the search: final hypotheses are sent through the decoder once more, all positions at
once. A search without attention therefore pays nothing for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor

from pybeam.engine.failures import failed, isolate
from pybeam.engine.source import Source
from pybeam.models.base import Alignment, Session
from pybeam.request import Hypothesis, Result


def with_attention(
    session: Session, alignment: Alignment | None, sources: Sequence[Source], results: list[Result]
) -> list[Result]:
    """Add attention, if it was asked for, and coverage to the results [A] of these sources.

    Results hold all hypotheses that were kept, best first, before and after. Without `alignment` no
    hypothesis gets `Hypothesis.attention`, and coverage uses ``Alignment()``.
    """
    wanted = [
        result.hypotheses if source.algorithm.scoring.coverage else _best(source, result, alignment)
        for source, result in zip(sources, results, strict=True)
    ]
    asking = [i for i, hypotheses in enumerate(wanted) if hypotheses]
    after = list(results)

    def attend(places: list[int]) -> None:
        for i in places:
            if sources[i].start is not None:
                raise ValueError(
                    f"attention needs the model's own start token, but `start` is {sources[i].start}; "
                    "leave it out, or `alignment` and `coverage`"
                )
        attention = session.attention(
            [sources[i].content for i in places],
            [[hypothesis.tokens for hypothesis in wanted[i]] for i in places],
            alignment or Alignment(),
        )
        for i, rows in zip(places, attention, strict=True):
            pairs = zip(wanted[i], rows, strict=True)
            own = [_with(one, row, sources[i], alignment is not None) for one, row in pairs]
            own += results[i].hypotheses[len(own) :]
            # stable, so that ties keep their order
            own.sort(key=lambda hypothesis: -hypothesis.final_score)
            after[i] = dataclasses.replace(results[i], hypotheses=own)

    for place, error in isolate(attend, asking).items():
        i = asking[place]
        after[i] = failed(results[i], error)
    return after


def _best(source: Source, result: Result, alignment: Alignment | None) -> list[Hypothesis]:
    return [] if alignment is None else result.hypotheses[: source.algorithm.n_best]


def _with(hypothesis: Hypothesis, rows: Tensor, source: Source, keeps: bool) -> Hypothesis:
    """Return a hypothesis with its attention [tokens + 1, E]. The last row belongs to EOS."""
    num_tokens = len(hypothesis.tokens)
    generated = rows[len(source.prefix) : num_tokens + hypothesis.ended]
    penalty = coverage_penalty(generated, source.algorithm.scoring.coverage)
    return dataclasses.replace(
        hypothesis,
        final_score=hypothesis.final_score + penalty,
        attention=rows[:num_tokens].clone() if keeps else None,
    )


def coverage_penalty(attention: Tensor, weight: float) -> float:
    """Compute ``weight * sum_e log(min(sum_t attention[t, e], 1))`` for attention [T, E]; 0 for weight 0.

    Source positions without any attention are left out.
    """
    if not weight:
        return 0.0
    coverage = attention.double().sum(0).tolist()
    return weight * sum(math.log(min(value, 1.0)) for value in coverage if value > 0)
