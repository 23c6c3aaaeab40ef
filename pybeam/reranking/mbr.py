"""Minimum Bayes risk: the hypothesis that is most like all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pybeam.reranking.chrf import chrf
from pybeam.reranking.weights import normalised

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
    shares = normalised(weights, len(references))  # [R]
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


def _matrix(values: Any, num_rows: int, num_columns: int) -> Tensor:
    matrix = torch.as_tensor(values, dtype=torch.float64)
    if matrix.shape != (num_rows, num_columns) or not matrix.isfinite().all():
        raise ValueError(
            f"`utility` must return finite numbers of shape [{num_rows}, {num_columns}], a row for each "
            f"hypothesis, but returned shape {list(matrix.shape)}: {values!r}; "
            "`pybeam.reranking.pairwise` makes one of a function of two texts"
        )
    return matrix
