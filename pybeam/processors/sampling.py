"""Draw the next token, or whole hypotheses without replacement, instead of searching for the best."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST, number, real, whole
from pybeam.backends import Backend, load
from pybeam.backends.torch_gumbel import GOLDEN, gumbel_noise, mixed
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor
from pybeam.processors.truncation import MinP, TopK, TopP, Truncation, may_read


@dataclass(frozen=True)
class Draw(Processor):
    """Draws from all tokens. `Sample` does more, which costs time on a GPU where no request asks for it."""

    temperature: float = 0.0
    seed: int = 0
    stage = "log_probs"
    per_request: ClassVar[tuple[str, ...]] = ("temperature", "seed")
    takes_slots: ClassVar[bool] = True

    def __post_init__(self) -> None:
        real("temperature", self.temperature)
        if self.temperature != 0:
            number("temperature", self.temperature, 0)
        whole("seed", self.seed, 0, LARGEST)

    def parameters(self) -> tuple[Tensor, ...]:
        # one that float32 does not hold would be infinite, and divide -inf
        temperature = min(self.temperature, torch.finfo(torch.float32).max)
        seed = torch.tensor(self.seed, dtype=torch.int64)
        return torch.tensor(temperature, dtype=torch.float32), seed

    @property
    def is_neutral(self) -> bool:  # type: ignore[override]
        return self.temperature == 0

    def for_target(self) -> Draw:
        return dataclasses.replace(self, temperature=0.0)

    def cut(self, x: Tensor, given: Sequence[Tensor]) -> Tensor:
        """Return x [R, V] with -inf for tokens that may not be drawn, by what requests give [R]."""
        return x

    def computed(
        self, backend: Backend, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        # in float64 nothing is rounded to float32, and classes of others may cut as they like
        if (
            backend.draw is None
            or logits.dtype == torch.float64
            or type(self) not in (Draw, Sample)
        ):
            return self(logits, rows, data)
        temperature, seed, *cuts = data
        lengths = rows.prefix_length, rows.min_length
        places = rows.row_slot, rows.position, rows.eos_ids
        return backend.draw.draw(logits, temperature, seed, cuts, *lengths, *places)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        done = rows.num_generated
        of_rows = (one.index_select(0, rows.row_slot) for one in (*data, rows.min_length))
        *given, min_length = of_rows
        parts = (*given, done, done < min_length)  # [R] each
        draws = (given[0] > 0) & (done >= 0)
        if not may_read(logits):
            safe = torch.where(draws, given[0], 1.0), *parts[1:]
            return torch.where(draws[:, None], self._drawn(logits, rows.eos_ids, *safe), logits)
        row = draws.nonzero()[:, 0]
        if row.numel():
            logits[row] = self._drawn(logits[row], rows.eos_ids, *(part[row] for part in parts))
        return logits

    def _drawn(
        self, log_probs: Tensor, eos_ids: Sequence[int], temperature: Tensor, *parts: Tensor
    ) -> Tensor:
        """Return log-probabilities [R, V] in which one token of each row is left.

        Random numbers follow from the seed, from how many tokens are done, and from the token.
        """
        seed, *given, done, may_not_end = parts
        x = log_probs.double() / temperature.double()[:, None]
        for eos_id in eos_ids:
            x[:, eos_id].masked_fill_(may_not_end, -INF)
        x, key = self.cut(x, given), _key(seed, done + 1)
        is_left = x > -INF
        if may_read(x) and 4 * int(is_left.sum()) < is_left.numel():
            # noise for all tokens would take longer than everything else
            row, token = is_left.nonzero(as_tuple=True)
            x[row, token] += gumbel_noise(key[row], token.to(INT)[:, None])[:, 0]
        else:
            token = torch.arange(x.shape[1], dtype=INT, device=x.device)
            x = gumbel_noise(key, token).add_(x)
        # the largest is a draw from the softmax of x as it was
        chosen = x.argmax(1, keepdim=True)  # [R, 1]
        return torch.full_like(log_probs, -INF).scatter_(1, chosen, log_probs.gather(1, chosen))


@dataclass(frozen=True)
class Sample(Draw):
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    draw: int = 0
    by_source: bool = False
    per_request: ClassVar = ("temperature", "seed", "top_k", "top_p", "min_p", "draw", "by_source")
    separates_groups: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("draw", self.draw, 0, LARGEST)
        _ = self._cuts  # each checks its number

    @cached_property
    def _cuts(self) -> tuple[Truncation, ...]:
        return TopK(self.top_k), TopP(self.top_p), MinP(self.min_p)

    def parameters(self) -> tuple[Tensor, ...]:
        temperature, seed = super().parameters()
        if self.draw:
            seed = _key(seed, torch.tensor(self.draw))
        return temperature, seed, *(own for cut in self._cuts for own in cut.parameters())

    def cut(self, x: Tensor, given: Sequence[Tensor]) -> Tensor:
        for cut, own in zip(self._cuts, given, strict=True):
            x = cut.cut(x, own)
        return x

    def of_source(self, content: Any, prefix: Sequence[int]) -> Sample:
        """Return the one whose seed follows from its own and from what is decoded."""
        if not self.by_source:
            return self
        digest = hashlib.blake2b(digest_size=8)
        _feed(digest, (self.seed, list(prefix), content))
        seed = int.from_bytes(digest.digest(), "little") & LARGEST
        return dataclasses.replace(self, seed=seed, by_source=False)

    def next_group(self, chosen: Sequence[Sequence[int]]) -> Sample:
        """Return the one that makes the next draw, which is independent of those before it."""
        return dataclasses.replace(self, draw=self.draw + 1)


def _feed(digest: hashlib.blake2b, content: Any) -> None:
    """Add to a digest what a source consists of: tensors, numbers, and what holds them."""
    if isinstance(content, Tensor):
        digest.update(f"{content.dtype} {list(content.shape)}".encode())
        digest.update(
            content.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    elif isinstance(content, list | tuple):
        digest.update(f"{len(content)}".encode())
        for part in content:
            _feed(digest, part)
    else:
        digest.update(f"{content!r} ".encode())


def _key(seed: Tensor, number: Tensor) -> Tensor:
    """Return keys [R] int64 of random numbers, by seeds and numbers [R]."""
    return mixed(mixed(seed) + number.long() * GOLDEN)


def sample(
    temperature: float = 0.0,
    seed: int = 0,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    draw: int = 0,
) -> Sample:
    """Draw each row's next token from ``softmax(log_probs / temperature)``; no other token is left.

    With `top_k`, `top_p` and `min_p`, the tokens that these processors leave are drawn, with probabilities in
    their old proportion. They see ``log_probs / temperature``, one after another in this order, as in
    transformers.

    The token keeps its log-probability, so scores are those of the model, at temperature 1 and with all
    tokens. With a beam of width 1 hypotheses are samples; `pybeam.sample` is that search. Random numbers
    follow from the seed, the draw, the number of generated tokens and the token alone. So a request's sample
    does not depend on what is decoded beside it, and requests with the same seed share their random numbers.
    Before `min_length` EOS is not drawn.

    Stage "log_probs"; it should be the last. Per request: all numbers. `gumbel` draws several hypotheses
    without replacement.

    Args:
        temperature: 0 draws nothing and changes nothing.
        seed: 0 to 2**63 - 1.
        top_k, top_p, min_p: see the processors of these names.
        draw: 0 to 2**63 - 1; samples of one seed and different draws are independent.

    Raises:
        TypeError, ValueError: a value is no such number.
    """
    return Sample(temperature, seed, top_k, top_p, min_p, draw)


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

    def computed(
        self, backend: Backend, log_probs: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        given = rows.tree.parent, rows.tree.log_prob, rows.prefix_length, rows.beam_score
        places = rows.row_slot, rows.entry, rows.node, rows.token, rows.position
        return backend.perturb(log_probs, *data, *given, *places)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return self.computed(load("reference"), logits, rows, data)


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
