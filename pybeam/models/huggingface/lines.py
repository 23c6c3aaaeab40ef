"""Lines of transformers caches, gathered into a new one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

# a cache, and which of its lines
Part = tuple[Cache | None, list[int]]


def has_length(cache: Cache) -> bool:
    """Whether lines of this cache must be equally long, as keys and values are and states are not."""
    if isinstance(cache, EncoderDecoderCache):
        return True
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def can_be_padded(cache: DynamicCache) -> bool:
    """Whether lines of different lengths can stand in one such cache, those that are shorter behind
    padding: keys and values can, states and what belongs to them cannot.
    """
    # of other classes, even those derived from these, nobody knows what else they hold
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def gathered(parts: Sequence[Part], length: int | None = None) -> Cache | None:
    """These lines, one part after another, as one cache; the others stay as they are.

    A layer of any class is copied, with every tensor in it that has a line per row. What is not per row
    is that of the first part.

    Args:
        length: of the longest line without its padding; for caches that can be padded, which are then
            padded on the left to that length.
    """
    first = parts[0][0]
    if first is None:
        return None
    # lines in one call all have a cache, or none of them has
    known = [(cache, index) for cache, index in parts if cache is not None]
    if isinstance(first, EncoderDecoderCache):
        own = gathered([(cache.self_attention_cache, index) for cache, index in known])
        cross = gathered([(cache.cross_attention_cache, index) for cache, index in known])
        both = EncoderDecoderCache(own, cross)
        both.is_updated = dict(first.is_updated)
        return both
    cache = copy.copy(first)
    indices = [index for _, index in known]
    cache.layers = [
        _layer(layers, indices, length)
        for layers in zip(*(part.layers for part, _ in known), strict=True)
    ]
    return cache


def _layer(layers: Sequence, indices: Sequence[list[int]], length: int | None):
    layer = copy.copy(layers[0])
    for name in vars(layer):
        setattr(layer, name, _value([getattr(own, name) for own in layers], indices, length))
    if length is not None and layer.is_sliding:
        layer.cumulative_length = length
    return layer


def _value(values: Sequence, indices: Sequence[list[int]], length: int | None):
    first = values[0]
    if isinstance(first, dict):
        return {key: _value([own[key] for own in values], indices, length) for key in first}
    if not isinstance(first, Tensor) or first.ndim < 2:
        return first
    most = max(own.shape[-2] for own in values)
    if length is not None:
        most = min(most, length)  # a longer line may be gone, or lie outside of a window
    chosen = []
    for own, index in zip(values, indices, strict=True):
        lines = own[torch.tensor(index, device=own.device)]
        if length is not None:
            lines = lines[..., -most:, :]
        missing = most - lines.shape[-2]
        # encoder states, which differ in number too, are padded on the right
        sides = (0, missing) if length is None else (missing, 0)
        chosen.append(F.pad(lines, (0, 0, *sides)))
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen)
