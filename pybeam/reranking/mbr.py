"""Minimum Bayes risk: the hypothesis that is most like all others, and how much each of them stands for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pybeam.request import Hypothesis
from pybeam.reranking.chrf import chrf

Utility = Callable[[Sequence[str], Sequence[str]], Any]


@dataclass(frozen=True)
class Choice:
    """What `minimum_bayes_risk` chooses.

    Attributes:
        index: of the best hypothesis.
        utilities: the expected utility of each.
    """

    index: int
    utilities: list[float]


def minimum_bayes_risk(
    hypotheses: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    utility: Utility = chrf,
    weights: Sequence[float] | None = None,
) -> Choice:
    """Choose the hypothesis with the highest expected utility.

    ``argmax_i sum_j weights[j] * utility(hypotheses[i], references[j])``, with weights divided by their sum.
    The first of equals is chosen. References are usually samples of the model, and the hypotheses
    themselves: then each is also compared with itself.

    Args:
        hypotheses: texts to choose from, at least one.
        references: texts that stand for what the model may mean; None: the hypotheses.
        utility: a function of H and R texts that returns H rows of R numbers, as `chrf` does. `pairwise`
            makes one of a function of two texts. It is asked about each different text once.
        weights: of the references; None: all the same, which is right for independent samples.
            `probability_weights` are those of an n-best list, `sample_weights` those of `stochastic_beam`.

    Raises:
        ValueError: there is no text, `weights` are not one for each reference, or negative, or all 0, or the
            utility gives other than H rows of R finite numbers.

    See Eikema and Aziz 2020 (samples), Freitag et al. 2022 (utilities), Kumar and Byrne 2004 (n-best lists).
    """
    references = hypotheses if references is None else references
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise ValueError(f"`{name}` must be a list of texts, but is {texts!r}")
        if not texts:
            raise ValueError(f"`{name}` must be at least one text, but there is none")
    shares = _normalised(weights, len(references))  # [R]
    ours, theirs = list(dict.fromkeys(hypotheses)), list(dict.fromkeys(references))
    place = {text: i for i, text in enumerate(theirs)}
    own_shares = torch.zeros(len(theirs), dtype=torch.float64)
    own_shares.index_add_(0, torch.tensor([place[text] for text in references]), shares)
    expected = _matrix(utility(ours, theirs), len(ours), len(theirs)) @ own_shares
    by_text = dict(zip(ours, expected.tolist(), strict=True))
    utilities = [by_text[text] for text in hypotheses]
    return Choice(max(range(len(utilities)), key=utilities.__getitem__), utilities)


def pairwise(function: Callable[[str, str], float]) -> Utility:
    """Make a utility of a function of a hypothesis and a reference."""

    def utility(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[float]]:
        return [[function(ours, theirs) for theirs in references] for ours in hypotheses]

    return utility


def probability_weights(hypotheses: Sequence[Hypothesis]) -> list[float]:
    """Return the probabilities of an n-best list, so that they sum to 1.

    ``exp(score_i) / sum_j exp(score_j)``

    Args:
        hypotheses: of one request.

    Raises:
        ValueError: there is no hypothesis with a probability.
    """
    scores = torch.tensor([hypothesis.score for hypothesis in hypotheses], dtype=torch.float64)
    if not scores.numel() or scores.max() == -math.inf:
        raise ValueError("`hypotheses` must have one with a probability, but there is none")
    return torch.softmax(scores, 0).tolist()


def sample_weights(hypotheses: Sequence[Hypothesis]) -> list[float]:
    """Return importance weights of the samples of `stochastic_beam`, so that they sum to 1.

    Samples without replacement are all different, so a mean over them counts likely ones too little. With
    k samples, and κ the perturbed log-probability (`final_score`) of the last, the weight of each other y is
    ``p(y) / (1 - exp(-exp(log p(y) - κ)))``: its probability, divided by that of being among the samples.
    The last has weight 0. A single one has weight 1. A weighted mean of f over the samples is close to the
    expectation of f under the model, and exact in the limit.

    Args:
        hypotheses: of one request, all that were drawn, in the order of their draws.

    Raises:
        ValueError: there is none, or they are not in the order of draws.

    See Kool, van Hoof and Welling 2019, on estimators from samples without replacement.
    """
    if not hypotheses:
        raise ValueError("`hypotheses` must be at least one, but there is none")
    draws = [hypothesis.final_score for hypothesis in hypotheses]
    if sorted(draws, reverse=True) != draws:
        raise ValueError(
            "`hypotheses` must be in the order of draws, highest final score first, as `stochastic_beam` "
            f"returns them, but their final scores are {draws}"
        )
    if len(draws) == 1:
        return [1.0]
    log_p = torch.tensor([h.score for h in hypotheses[:-1]], dtype=torch.float64)
    # log(1 - exp(-exp(a))), where exp(a) is small for what is unlikely to be drawn
    log_q = torch.log(-torch.expm1(-torch.exp(log_p - draws[-1])))
    return [*torch.softmax(log_p - log_q, 0).tolist(), 0.0]


def _matrix(values: Any, num_rows: int, num_columns: int) -> Tensor:
    matrix = torch.as_tensor(values, dtype=torch.float64)
    if matrix.shape != (num_rows, num_columns) or not matrix.isfinite().all():
        raise ValueError(
            f"`utility` must return finite numbers of shape [{num_rows}, {num_columns}], a row for each "
            f"hypothesis, but returned shape {list(matrix.shape)}: {values!r}; "
            "`pybeam.reranking.pairwise` makes one of a function of two texts"
        )
    return matrix


def _normalised(weights: Sequence[float] | None, num: int) -> Tensor:
    """Return weights [num] float64 that sum to 1; all the same for None. Raises ValueError if they cannot."""
    if weights is None:
        return torch.full((num,), 1 / num, dtype=torch.float64)
    given = torch.as_tensor(weights, dtype=torch.float64)
    if given.shape != (num,) or not given.isfinite().all() or (given < 0).any() or given.sum() == 0:
        raise ValueError(
            f"`weights` must be {num} finite numbers, one for each reference, none negative and not all 0, "
            f"but are {weights!r}"
        )
    return given / given.sum()
