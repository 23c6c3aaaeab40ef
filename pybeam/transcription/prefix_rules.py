"""Rules for timestamps behind tokens with which an output begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.processors.base import INF
from pybeam.speech.timestamps import WhisperTimestamps


@dataclass(frozen=True)
class TimestampsBehind(WhisperTimestamps):
    """Whisper's rules as CTranslate2 has them where an output begins with given tokens.

    The token behind these may be any but `no_timestamps`. The rules count from there.

    Args:
        is_begun: whether tokens are given.
    """

    is_begun: bool = False
    per_request: ClassVar = ("max_initial", "is_begun")

    def parameters(self) -> tuple[Tensor, ...]:
        return *super().parameters(), torch.tensor(self.is_begun)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        *own, is_begun = data
        is_free = (is_begun & (rows.num_generated == 0))[:, None]
        free = logits.clone()
        free[:, self.no_timestamps] = -INF
        return torch.where(is_free, free, super().__call__(logits, rows, tuple(own)))
