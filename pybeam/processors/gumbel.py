"""Gumbel noise that turns a beam search into sampling without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.backends import Backend, load
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor


@dataclass(frozen=True)
class Gumbel(Processor):
    seed: int = 0
    stage = "log_probs"
    per_request: ClassVar = ("seed",)
    perturbs: ClassVar[bool] = True
    takes_slots: ClassVar = True
    # for every node: a hash of the seed and the tokens behind the prefix, and the log-probability of all
    # tokens; that of a prefix that is not scored is 0
    state: ClassVar = (torch.int64, torch.float32)

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"`seed` must be an int, but is {self.seed!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must be 0 to 2**63 - 1, but is {self.seed}")

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.seed, dtype=torch.int64),)

    def perturbed(
        self, backend: Backend, log_probs: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        """Do what `__call__` does in the backend's kernels."""
        given = rows.tree.parent, rows.tree.log_prob, rows.prefix_length, rows.beam_score
        places = rows.row_slot, rows.entry, rows.node, rows.token, rows.position
        return backend.perturb(log_probs, *data, *given, *places)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return self.perturbed(load("reference"), logits, rows, data)


def gumbel(seed: int = 0) -> Gumbel:
    """Add noise that turns a beam search into sampling without replacement.

    ``phi(y)`` is the log-probability of the tokens y so far, and ``G(y)`` the score of the row. Every
    continuation first gets ``G'(yv) = phi(yv) + g``, where g is a Gumbel(0) number of its own. Then

    ``G(yv) = -log(exp(-G(y)) - exp(-max_w G'(yw)) + exp(-G'(yv)))``

    so that the largest of them is ``G(y)``. The search ranks by these numbers. ``G`` of the start is a
    Gumbel(0) number too, so that scores fit the paper's estimators. (The paper's algorithm 1 sets it to 0,
    which shifts all scores alike.) All numbers are a hash of the seed, the tokens behind the forced prefix,
    and v. They depend on nothing else, and requests with the same seed share them.

    Stage "log_probs"; it must be the last processor. Per request: the seed. Sampling is exact with
    `pybeam.stochastic_beam`. Other algorithms may drop hypotheses that would have been drawn.
    `Hypothesis.score` and `log_probs` are those of the model, `final_score` is ``G``.

    CTranslate2's beam search with `sampling_topk` draws new noise in every step and does not condition it.

    Args:
        seed: 0 to 2**63 - 1.

    Raises:
        TypeError, ValueError: the seed is no such number.

    See Kool, van Hoof and Welling 2019.
    """
    return Gumbel(seed)
