"""Rank n-best lists again, with the scores of other models beside those of the search."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pybeam.decoder import Decoder
from pybeam.request import Request, Result
from pybeam.text.tokenizer import Tokenizer

Scores = Sequence[Sequence[float]]


def rerank(
    results: Sequence[Result], scores: Sequence[Scores], weights: Sequence[float]
) -> list[Result]:
    """Sort the hypotheses of every result by a weighted sum of scores, highest first.

    ``final_score_new = weights[0] * final_score + weights[1] * scores[0][i][j] + …`` for hypothesis j of
    result i. Equal ones keep their order. `Hypothesis.score` stays. A weight of 0 leaves a score out, even
    if it is minus infinity.

    With an n-best list of a direct model, and the scores of a reverse model and a language model, all per
    token, this is the noisy channel of Yee et al. 2019 with ``weights = (1, λ, λ)``. Weights are chosen on
    lines whose references are known.

    Args:
        results: of `Decoder.decode`.
        scores: for every other model a list that has, for every result, a score for each hypothesis, such as
            `forward_scores` and `reverse_scores` return.
        weights: one for the search's own final scores, and one for each of `scores`.

    Raises:
        ValueError: numbers of weights, results or hypotheses do not fit together.

    See Yee, Dauphin and Auli 2019.
    """
    if len(weights) != 1 + len(scores) or not all(map(math.isfinite, weights)):
        raise ValueError(
            f"`weights` must be {1 + len(scores)} finite numbers, one for the final scores and one for each "
            f"of `scores`, but are {weights!r}"
        )
    expected = [len(result.hypotheses) for result in results]
    for k, own in enumerate(scores):
        found = [len(row) for row in own]
        if found != expected:
            raise ValueError(
                f"`scores[{k}]` must have a score for each hypothesis of each result, {expected} of them, "
                f"but has {found}"
            )
    ranked = []
    for i, result in enumerate(results):
        again = []
        for j, hypothesis in enumerate(result.hypotheses):
            terms = [hypothesis.final_score, *(own[i][j] for own in scores)]
            total = math.fsum(w * t for w, t in zip(weights, terms, strict=True) if w != 0)
            again.append(dataclasses.replace(hypothesis, final_score=total))
        again.sort(key=lambda hypothesis: -hypothesis.final_score)
        ranked.append(dataclasses.replace(result, hypotheses=again))
    return ranked


def forward_scores(
    decoder: Decoder, requests: Iterable[Any], results: Sequence[Result]
) -> list[list[float]]:
    """Score the hypotheses of every result with another model that has the same target vocabulary.

    Args:
        decoder: of the other model, or an ensemble. The scoring of its algorithm counts:
            ``pybeam.greedy(scoring=pybeam.scoring.power(1.0))`` gives ``log p(y | x)`` per token.
        requests: the sources of the results, in their order, as for `Decoder.decode`.
        results: their hypotheses.

    Returns:
        For every result the final score of each hypothesis.

    Raises:
        DecodeError: a hypothesis cannot be scored.
        ValueError: there are more or fewer requests than results.
    """
    pairs, targets = [], []
    for request, result in zip(requests, results, strict=True):
        again = Request.of(request)
        for hypothesis in result.hypotheses:
            pairs.append(again)
            targets.append(hypothesis.tokens[again.prefix_length :])
    return _by_result(decoder.score(pairs, targets), [len(r.hypotheses) for r in results])


def reverse_scores(
    decoder: Decoder, tokenizer: Tokenizer, sources: Sequence[str], outputs: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Score every source as the translation of each of its outputs: ``log p(x | y)``.

    Args:
        decoder: of a model that translates back. The scoring of its algorithm counts, as in
            `forward_scores`.
        tokenizer: of that model.
        sources: texts.
        outputs: for every source the texts of its hypotheses.

    Returns:
        For every source the final score with each output.

    Raises:
        DecodeError: a pair cannot be scored.
        ValueError: there are more or fewer sources than lists of outputs.
    """
    pairs, targets = [], []
    for source, texts in zip(sources, outputs, strict=True):
        for text in texts:
            pairs.append(Request(tokenizer.encode(text)))
            targets.append(tokenizer.encode_target(source))
    return _by_result(decoder.score(pairs, targets), [len(texts) for texts in outputs])


def _by_result(scored: Sequence[Result], lengths: Sequence[int]) -> list[list[float]]:
    scores = (result.hypotheses[0].final_score for result in scored)
    return [list(itertools.islice(scores, length)) for length in lengths]
