"""Diverse beam search: groups of beams of one request, each of which avoids the choices of earlier groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import number, whole
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor
from pybeam.search.algorithms import Algorithm

__all__ = ["diverse", "penalty"]

# they are searched one after another
MAX_GROUPS = 4096


@dataclass(frozen=True)
class Diversity(Processor):
    penalty: float
    chosen: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # tokens, step by step
    stage = "log_probs"
    per_request: ClassVar = ("penalty",)
    separates_groups: ClassVar = True

    def __post_init__(self) -> None:
        number("diversity_penalty", self.penalty, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the penalty and the tokens [T, C]. T has few sizes, so that arrays are rarely replaced."""
        most = max(map(len, self.chosen), default=0)
        num_steps = 1 << (len(self.chosen) - 1).bit_length() if self.chosen else 0
        tokens = torch.full((num_steps, most), -1, dtype=INT)
        for line, step in zip(tokens, self.chosen, strict=False):
            line[: len(step)] = torch.tensor(step, dtype=INT)
        return torch.tensor(self.penalty, dtype=torch.float32), tokens

    def next_group(self, chosen: Sequence[Sequence[int]]) -> Diversity:
        """Return one whose tokens are those of all earlier groups."""
        steps = zip_longest(self.chosen, chosen, fillvalue=())
        return dataclasses.replace(self, chosen=tuple((*old, *new) for old, new in steps))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        penalty, chosen = data  # [R], [R, T, C]
        num_steps = chosen.shape[1]
        if not chosen.numel():
            return logits
        step = rows.num_generated.long()  # [R]
        number = torch.arange(step.numel(), device=step.device)
        token = chosen[number, step.clamp(0, num_steps - 1)]  # [R, C]
        is_there = (token >= 0) & ((step >= 0) & (step < num_steps))[:, None]
        taken = torch.where(is_there, -penalty[:, None], 0.0).to(logits.dtype)
        # a token counts as often as it was chosen
        return logits.scatter_add_(1, token.clamp(min=0).long(), taken)


def diverse(algorithm: Algorithm, num_groups: int, diversity_penalty: float) -> Algorithm:
    """Search with `num_groups` groups of beams, each of which avoids what earlier ones chose.

    Every group is a search by `algorithm`, whose width, stop rule and n_best are those of one group. At its
    t-th step a group sees ``log p(v) - diversity_penalty * count``, where `count` is the number of rows of
    earlier groups that went on with v at their t-th step. Scores include the penalty. A row that ends
    chose nothing, and neither does a group that has stopped. `Result.hypotheses` are the n_best of all
    groups, best final score first; `steps` and `expansions` are sums, `stop_reason` is "groups".

    The group beam search of transformers is ``diverse(algorithm, num_beam_groups, penalty)`` with
    ``algorithm = pybeam.compat.huggingface.beam_search(k, num_return_sequences=k)`` and
    ``k = num_beams // num_beam_groups``. That of fairseq differs: it also counts candidates that end or
    are not kept, and all groups share one set of finished hypotheses.

    The groups of a request are searched one after another, since a group needs nothing of later ones.
    Groups of different requests go side by side. A source is encoded once for every group.

    Args:
        algorithm: any but `stochastic_beam`.
        num_groups: 2 to 4,096.
        diversity_penalty: positive, in nats. Per request:
            ``Request(source, processors=[pybeam.diversity.penalty(0.5)])``.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Vijayakumar et al. 2016.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"`algorithm` must be one such as fixed_beam(2), but is {algorithm!r}")
    whole("num_groups", num_groups, 2, MAX_GROUPS)
    if algorithm.num_groups > 1:
        raise ValueError(
            f"`algorithm` must be an algorithm without groups, but has {algorithm.num_groups}; ask for "
            "all of them at once"
        )
    processors = (*algorithm.processors, Diversity(diversity_penalty))
    return dataclasses.replace(algorithm, num_groups=num_groups, processors=processors)


def penalty(penalty: float) -> Diversity:
    """Set another penalty for one request of a `pybeam.diverse` search. Elsewhere it does nothing.

    Stage "log_probs". Per request: the penalty.

    Raises:
        ValueError: the penalty is not a positive number.
    """
    return Diversity(penalty)
