"""The results of CTranslate2's Python package, by their names and with their attributes."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class StorageView:
    """Numbers in a tensor, as CTranslate2 hands them out: `numpy.array` and `torch.as_tensor` take it.

    Args:
        tensor: the numbers.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()

    @classmethod
    def from_array(cls, array: Any) -> StorageView:
        """Make one of an `array` or a tensor, whose memory it shares."""
        return cls(array if isinstance(array, Tensor) else torch.as_tensor(np.asarray(array)))

    @property
    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._tensor.shape)

    @property
    def device(self) -> str:
        """Where the numbers are: cpu or cuda."""
        return self._tensor.device.type

    @property
    def device_index(self) -> int:
        """The number of the device."""
        return self._tensor.device.index or 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self._tensor.float() if self._tensor.dtype == torch.bfloat16 else self._tensor
        array = found.cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.__array__().__array_interface__
        return interface

    def __repr__(self) -> str:
        return f"StorageView({self._tensor!r})"


Logits = list[list[StorageView]]


@dataclass(frozen=True)
class TranslationResult:
    """A translation result.

    Attributes:
        hypotheses: tokens of each.
        scores: of each; empty without `return_scores`.
        attention: of each a vector for every token; empty without `return_attention`.
        logits: of each a vector for every step; empty without `return_logits_vocab`.
    """

    hypotheses: list[list[str]]
    scores: list[float] = field(default_factory=list)
    attention: list[list[list[float]]] = field(default_factory=list)
    logits: Logits = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.hypotheses)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return a hypothesis as a dict, as the first versions did."""
        warnings.warn(
            "read the attributes of a TranslationResult", DeprecationWarning, stacklevel=2
        )
        found: dict[str, Any] = {"tokens": self.hypotheses[i]}
        if self.scores:
            found["score"] = self.scores[i]
        if self.attention:
            found["attention"] = self.attention[i]
        return found


@dataclass(frozen=True)
class GenerationResult:
    """A generation result.

    Attributes:
        sequences, sequences_ids: tokens of each, and their ids.
        scores, logits: see `TranslationResult`.
    """

    sequences: list[list[str]]
    sequences_ids: list[list[int]]
    scores: list[float] = field(default_factory=list)
    logits: Logits = field(default_factory=list)


@dataclass(frozen=True)
class GenerationStepResult:
    """A token that has been generated.

    Attributes:
        step: how many came before it.
        batch_id, hypothesis_id: whose it is.
        token_id, token: the token.
        log_prob: its log-probability; None if it was not asked for.
        logits: always None, see `Translator.translate_batch`.
        is_last: whether no other follows.
    """

    step: int
    batch_id: int
    token_id: int
    hypothesis_id: int
    token: str
    log_prob: float | None = None
    logits: StorageView | None = None
    is_last: bool = False


@dataclass(frozen=True)
class ScoringResult:
    """The `log_probs` of given `tokens`."""

    tokens: list[str]
    log_probs: list[float]


@dataclass(frozen=True)
class ExecutionStats:
    """The size of a file, `num_tokens` and `num_examples`, and the time that it took, `total_time_in_ms`."""

    num_tokens: int
    num_examples: int
    total_time_in_ms: float


class AsyncResult(Generic[T]):
    """A result that is on its way: the one at a `place` of the list that a `future` will have."""

    def __init__(self, future: Future[list[T]], place: int) -> None:
        self._future, self._place = future, place

    def result(self) -> T:
        """Wait for the result, and return it or raise what was raised."""
        return self._future.result()[self._place]

    def done(self) -> bool:
        """Whether it is there."""
        return self._future.done()


# CTranslate2 has a class for each
AsyncTranslationResult = AsyncGenerationResult = AsyncScoringResult = AsyncResult
