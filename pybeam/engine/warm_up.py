"""Random requests, for `Decoder.warm_up` and for a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pybeam.models.base import Model
from pybeam.request import Request

# Lengths of sources and outputs, in turn. Memory grows with them, and kernels are chosen by them.
LENGTHS = (1, 8, 32)


def some_requests(model: Model, number: int) -> list[Request]:
    """Make random requests of several lengths."""
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(number)]
    if model.max_positions is not None:
        lengths = [min(length, model.max_positions) for length in lengths]
    if model.takes_features:
        # a recording costs much more than a sentence
        lengths = [32 * length for length in lengths[:4]]
        config: Any = getattr(model, "config", None)
        if model.device.type == "cuda" and getattr(config, "model_type", "") == "whisper":
            # its windows are whole, and captured
            lengths = [config.front.num_frames(config.max_source_positions)] * len(lengths)
    sources = random_sources(model, lengths, torch.Generator().manual_seed(0))
    # an algorithm may ask for more tokens than these have
    return [Request(source, min_length=0, max_length=16) for source in sources]


def random_sources(model: Model, lengths: Sequence[int], generator: torch.Generator) -> list[Any]:
    """Make sources of random ids or frames, of these lengths, that the model reads."""
    members: list[Any] = list(getattr(model, "members", [model]))
    configs = [getattr(member, "config", None) for member in members]
    if model.takes_features:
        front = getattr(configs[0], "front", None)
        num_features = 80 if front is None else front.num_features
        return [torch.randn(length, num_features, generator=generator) for length in lengths]
    size = min(getattr(config, "source_vocab_size", 1) for config in configs)
    return [torch.randint(size, (one,), generator=generator).tolist() for one in lengths]
