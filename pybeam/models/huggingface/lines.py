"""Gather lines of transformers caches into a new cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

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

# a cache, and the numbers of lines in it
Part = tuple[Cache | None, list[int]]


def has_length(cache: Cache) -> bool:
    """Whether lines of this cache have a length, as keys and values have, but not recurrent states."""
    if isinstance(cache, EncoderDecoderCache):
        return True
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def can_be_padded(cache: DynamicCache) -> bool:
    """Whether lines of different lengths can share such a cache, the shorter ones padded.

    Keys and values can be padded. States, and what belongs to them, cannot.
    """
    # other classes, even those derived from these, may hold anything else
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def gathered(parts: Sequence[Part], length: int | None = None) -> Cache | None:
    """Gather these lines, one part after another, into one new cache.

    Layers of any class are copied, with every tensor in them that has a line per row. All else is taken
    from the first part.

    Args:
        parts: caches, and which of their lines to take.
        length: of the longest line without its padding, for caches that can be padded: they are padded
            on the left to that length. None: lines are equally long.
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


def _layer(layers: Sequence[Any], indices: Sequence[list[int]], length: int | None) -> Any:
    layer = copy.copy(layers[0])
    for name in vars(layer):
        setattr(layer, name, _value([getattr(own, name) for own in layers], indices, length))
    if length is not None and layer.is_sliding:
        layer.cumulative_length = length
    return layer


def _value(values: Sequence[Any], indices: Sequence[list[int]], length: int | None) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _value([own[key] for own in values], indices, length) for key in first}
    if not isinstance(first, Tensor) or first.ndim < 2:
        return first
    num_tokens = max(own.shape[-2] for own in values)
    if length is not None:
        # a longer line may be gone, or lie outside of a window
        num_tokens = min(num_tokens, length)
    chosen = []
    for own, index in zip(values, indices, strict=True):
        lines = own[torch.tensor(index, device=own.device)]
        if first.ndim == 2:
            # a state of each line, as Zaya's, has no tokens
            chosen.append(lines)
            continue
        if length is not None:
            lines = lines[..., -num_tokens:, :]
        missing = num_tokens - lines.shape[-2]
        # encoder states differ in number too, and are padded on the right
        sides = (0, missing) if length is None else (missing, 0)
        chosen.append(F.pad(lines, (0, 0, *sides)))
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen)
