"""How much each output of a search stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.request import Hypothesis


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


def normalised(weights: Sequence[float] | None, num: int) -> Tensor:
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
