"""Draw the next token instead of searching for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import number, whole
from pybeam.backends.torch_gumbel import GOLDEN, gumbel_noise, mixed
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor


@dataclass(frozen=True)
class Sample(Processor):
    temperature: float = 0.0
    seed: int = 0
    stage = "log_probs"
    per_request: ClassVar = ("temperature", "seed")

    def __post_init__(self) -> None:
        if self.temperature != 0:
            number("temperature", self.temperature, 0)
        whole("seed", self.seed, 0, 2**63 - 1)

    def parameters(self) -> tuple[Tensor, ...]:
        seed = torch.tensor(self.seed, dtype=torch.int64)
        return torch.tensor(self.temperature, dtype=torch.float32), seed

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        temperature, seed = data  # [R] each
        done = rows.num_generated
        draws = (temperature > 0) & (done >= 0)
        if logits.is_cuda:
            # nothing may be read back there
            safe = torch.where(draws, temperature, 1.0)
            return torch.where(draws[:, None], drawn(logits, safe, seed, done), logits)
        row = draws.nonzero()[:, 0]
        if row.numel():
            logits[row] = drawn(logits[row], temperature[row], seed[row], done[row])
        return logits


def drawn(log_probs: Tensor, temperature: Tensor, seed: Tensor, done: Tensor) -> Tensor:
    """Return log-probabilities [R, V] in which one token of each row is left, drawn at a temperature [R].

    Random numbers follow from the seed [R], from how many tokens are done [R], and from the token.
    """
    key = mixed(mixed(seed) + (done.long() + 1) * GOLDEN)  # [R]
    token = torch.arange(log_probs.shape[1], dtype=INT, device=log_probs.device)
    # the largest of these is a draw from softmax(log_probs / temperature)
    noisy = gumbel_noise(key, token).add_(log_probs.double() / temperature.double()[:, None])
    chosen = noisy.argmax(1, keepdim=True)  # [R, 1]
    return torch.full_like(log_probs, -INF).scatter_(1, chosen, log_probs.gather(1, chosen))


def sample(temperature: float = 0.0, seed: int = 0) -> Sample:
    """Draw each row's next token from ``softmax(log_probs / temperature)``; no other token is left.

    The token keeps its log-probability, so scores are those of the model. With a beam of width 1 hypotheses
    are samples of it. Random numbers follow from the seed and the number of generated tokens alone, so a
    request's sample does not depend on what is decoded beside it.

    Stage "log_probs"; it should be the last. Per request: both numbers. `gumbel` draws several hypotheses
    without replacement.

    Args:
        temperature: 0 draws nothing and changes nothing.
        seed: 0 to 2**63 - 1.

    Raises:
        TypeError, ValueError: a value is no such number.
    """
    return Sample(temperature, seed)
