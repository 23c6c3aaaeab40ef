"""chrF of all hypotheses against all references at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import number, whole


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    char_order: int = 6,
    beta: float = 2.0,
) -> Tensor:
    """Compute chrF of every hypothesis against every reference: [H, R] float64, from 0 to 100.

    ``chrF(h, r) = 100 (1 + beta²) P R / (beta² P + R)``, where P is the mean over n = 1 … `char_order` of the
    share of h's character n-grams that are in r, each as often as in both, and R that of r's in h. Only n for
    which both texts have n-grams count; without any, or without a match, chrF is 0. White space is left
    out. This is ``sacrebleu.metrics.CHRF(char_order, beta=beta).sentence_score(h, [r]).score``.

    Args:
        hypotheses, references: texts.
        char_order: the longest n-grams, from 1 on.
        beta: how much more recall counts than precision.

    Raises:
        TypeError, ValueError: an argument is no such number.

    See Popović 2015.
    """
    whole("char_order", char_order, 1)
    number("beta", beta, 0.0)
    num = len(hypotheses)
    precision, recall, orders = torch.zeros(3, num, len(references), dtype=torch.float64)  # [H, R]
    for counts in _counts([*hypotheses, *references], char_order):  # [H + R, V]
        ours, theirs = counts[:num], counts[num:]
        matches = _common(ours, theirs)
        num_ours, num_theirs = ours.sum(1).double()[:, None], theirs.sum(1).double()[None, :]
        counts_here = (num_ours > 0) & (num_theirs > 0)
        precision += torch.where(counts_here, matches / num_ours.clamp(min=1), 0.0)
        recall += torch.where(counts_here, matches / num_theirs.clamp(min=1), 0.0)
        orders += counts_here
    precision /= orders.clamp(min=1)
    recall /= orders.clamp(min=1)
    below = beta**2 * precision + recall
    score: Tensor = precision * recall / torch.where(below > 0, below, 1.0)  # [H, R]
    return score.mul_(100 * (1 + beta**2))


def _counts(texts: Sequence[str], char_order: int) -> Iterator[Tensor]:
    """For every n the number of each n-gram in each text: [T, V] float32, V different n-grams."""
    bare = ["".join(text.split()) for text in texts]
    owner = np.repeat(np.arange(len(bare)), [len(text) for text in bare])  # [L], L characters
    joined = "".join(bare).encode("utf-32-le", "surrogatepass")
    letters = np.unique(np.frombuffer(joined, np.uint32), return_inverse=True)[1].reshape(-1)
    ngrams = letters
    for n in range(1, char_order + 1):
        if n > 1:
            # an n-gram is the one before it and a letter
            longer = ngrams[:-1] * np.int64(letters.size + 1) + letters[n - 1 :]
            ngrams = np.unique(longer, return_inverse=True)[1].reshape(-1)
        is_inside = owner[: ngrams.size] == owner[n - 1 :]
        num = int(ngrams.max(initial=-1)) + 1
        cells = owner[: ngrams.size][is_inside] * num + ngrams[is_inside]
        counts = np.bincount(cells, minlength=len(bare) * num).reshape(len(bare), num)
        yield torch.from_numpy(counts.astype(np.float32))


def _common(ours: Tensor, theirs: Tensor) -> Tensor:
    """Sum the smaller of two counts over all n-grams: [H, V], [R, V] -> [H, R] float64.

    ``min(a, b)`` is the number of t from 1 on with ``a >= t`` and ``b >= t``, so products of matrices of 0
    and 1 do it. Sums of so many ones are exact in float32.
    """
    common = torch.zeros(len(ours), len(theirs), dtype=torch.float64)
    times = 1
    while True:
        # most n-grams do not come twice, and their columns are left out
        kept = ((ours >= times).any(0) & (theirs >= times).any(0)).nonzero()[:, 0]
        if not len(kept):
            return common
        ours, theirs = ours[:, kept], theirs[:, kept]
        common += (ours >= times).float() @ (theirs >= times).float().T
        times += 1
