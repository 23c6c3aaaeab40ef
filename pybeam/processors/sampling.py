"""Draw the next token, or whole hypotheses without replacement, instead of searching for the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST, number, whole
from pybeam.backends import Backend, load
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
        whole("seed", self.seed, 0, LARGEST)

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
        whole("seed", self.seed, 0, LARGEST)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.seed, dtype=torch.int64),)

    def perturbed(
        self, backend: Backend, log_probs: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
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
