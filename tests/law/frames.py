"""Frames of CTC for the law."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.models.base import Model

BLANK = 9  # a token that ends nothing


def heard(model: Model, seed: int, num_frames: int) -> Tensor:
    """Frames of CTC in which any token may be heard."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(num_frames, model.vocab_size, generator=made).log_softmax(1)
