"""Lines of transformers caches, gathered into a new one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

# a cache, and which of its lines
Part = tuple[Cache | None, list[int]]


def has_length(cache: Cache) -> bool:
    """Whether lines of this cache must be equally long, as keys and values are and states are not."""
    if isinstance(cache, EncoderDecoderCache):
        return True
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def gathered(parts: Sequence[Part]) -> Cache | None:
    """These lines, one part after another, as one cache; the others stay as they are.

    A layer of any class is copied, with every tensor in it that has a line per row. What is not per row
    is that of the first part.
    """
    first = parts[0][0]
    if first is None:
        return None
    if isinstance(first, EncoderDecoderCache):
        own = gathered([(cache.self_attention_cache, index) for cache, index in parts])
        cross = gathered([(cache.cross_attention_cache, index) for cache, index in parts])
        both = EncoderDecoderCache(own, cross)
        both.is_updated = dict(first.is_updated)
        return both
    cache = copy.copy(first)
    indices = [index for _, index in parts]
    cache.layers = [
        _layer(layers, indices) for layers in zip(*(part.layers for part, _ in parts), strict=True)
    ]
    return cache


def _layer(layers: Sequence, indices: Sequence[list[int]]):
    layer = copy.copy(layers[0])
    for name in vars(layer):
        setattr(layer, name, _value([getattr(own, name) for own in layers], indices))
    return layer


def _value(values: Sequence, indices: Sequence[list[int]]):
    first = values[0]
    if isinstance(first, dict):
        return {key: _value([own[key] for own in values], indices) for key in first}
    if not isinstance(first, Tensor) or first.ndim < 2:
        return first
    # encoder states differ in number; those that pad a line are masked
    longest = max(own.shape[-2] for own in values)
    chosen = [
        F.pad(own[torch.tensor(index, device=own.device)], (0, 0, 0, longest - own.shape[-2]))
        for own, index in zip(values, indices, strict=True)
    ]
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen)
