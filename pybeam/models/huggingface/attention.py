"""Let a transformers model attend over a token tree, with one attention function and one cache.

Both are transformers' own extension points. `TreeLayer.update` writes a step's keys and values to the
rows' cells. It returns the whole pool instead of a longer copy. The model passes the pool on to the
attention function that its config names, and during a step that is ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from pybeam.backends import Backend
from pybeam.contracts import Distances
from pybeam.models.cells import Cells
from pybeam.models.huggingface.sinks import SinkAttention
from pybeam.models.rows import Rows

NAME = "pybeam"
_current = threading.local()
# of each call of an attention function: what the model would add to scores, and the number of keys
Caught = list[tuple[Tensor | None, int]]


class CannotAttend(ValueError):
    """The model's attention cannot be computed over what the tree lets it see."""


@dataclass
class Step:
    """One step of a session: its rows, and where they find keys and values."""

    backend: Backend
    rows: Rows
    own: Cells
    position: Tensor  # [R] int32, of each row
    cell_position: Tensor | None = None  # [cells] int32, of the token in each cell, if it is kept
    cross: Cells | None = None
    cross_key: Sequence[Tensor] = ()  # by layer; cross-attention is recognised by its keys
    embedding: Tensor | None = None  # [R, 1, d], embeddings of the rows' positions
    bias: Sequence[Tensor] = ()  # by layer, what self-attention adds to scores [H, P], by distance
    given_windows: set[int] = field(default_factory=set)  # all that the model gave
    _with_sinks: dict[int | None, SinkAttention] = field(default_factory=dict)

    def distances(self, layer: int, window: int | None, soft_cap: float | None) -> Distances | None:
        """Return how distances change the scores of this layer's self-attention; None: not at all."""
        bias = self.bias[layer] if self.bias else None
        if window is None and bias is None:
            return None if soft_cap is None else Distances(soft_cap=soft_cap)
        return Distances(*self.positions, bias, window=window, soft_cap=soft_cap)

    @property
    def positions(self) -> tuple[Tensor, Tensor]:
        """The positions of rows and cells. Raises CannotAttend if those of the cells are not kept."""
        if self.cell_position is None:
            raise CannotAttend("its layers have windows that its config does not name")
        return self.position, self.cell_position

    def with_sinks(self, window: int | None) -> SinkAttention:
        """Return self-attention with sinks over this window, whose cells are gathered once per source."""
        if window not in self._with_sinks:
            positions = None if window is None else self.positions
            self._with_sinks[window] = SinkAttention(self.rows, self.own, window, positions)
        return self._with_sinks[window]


def current() -> Step | None:
    """Return the step that this thread is in."""
    attended = getattr(_current, "attended", None)
    return attended if isinstance(attended, Step) else None


@contextmanager
def attending(configs: Sequence[Any], attended: Step | Caught) -> Iterator[None]:
    """A context in which models with these configs attend over the cells of a step.

    With a list in place of a step they compute no attention, and each call is added to the list.
    """
    before = [config._attn_implementation for config in configs]
    _current.attended = attended
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        yield
    finally:
        _current.attended = None
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name


# transformers calls this with its own parameters
def tree_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as `transformers.AttentionInterface` wants it, which sets its parameters.

    Args:
        module: the attention layer that calls it.
        query: [R, H, 1, D].
        key, value: [cells, G, D], the pools of this layer.
        attention_mask: not used; the tree has its own.
        scaling: what products of queries and keys are multiplied by; None: 1 / sqrt(D).
        sliding_window: how many positions a row sees (Mistral); None: all.
        softcap: the bound of scores (Gemma 2).
        s_aux: [H], a sink per head (gpt-oss): one more score, without a value.
        position_bias: what encoder-decoders with relative positions add to scores.

    Returns:
        [R, 1, H, D], and no weights.

    Raises:
        CannotAttend: the model changes its attention scores in a way that the session does not support.
    """
    step = getattr(_current, "attended", None)
    if isinstance(step, list):
        step.append((position_bias, key.shape[2]))
        return query.transpose(1, 2), None
    if step is None:
        raise RuntimeError(
            f"attention {NAME!r} is for sessions of pybeam; load the model with another, such as 'sdpa'"
        )
    if query.shape[2] != 1 or key.ndim != 3:
        raise CannotAttend("its attention does not take keys and values as the cache returns them")
    layer = int(module.layer_idx)
    is_cross = layer < len(step.cross_key) and key is step.cross_key[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if position_bias is not None and not step.bias:
        raise CannotAttend("its attention has a `position_bias`")
    if s_aux is not None and step.cross is not None:
        raise CannotAttend("its attention has a sink, and there is an encoder")
    attended = query[:, :, 0], key, value, scale
    if is_cross:
        assert step.cross is not None
        distances = None if softcap is None else Distances(soft_cap=softcap)
        return step.cross.attend(step.backend, *attended, distances)[:, None], None
    if sliding_window is not None:
        step.given_windows.add(sliding_window)
    if s_aux is not None:
        out = step.with_sinks(sliding_window)(*attended, softcap, s_aux)
        return out[:, None], None
    distances = step.distances(layer, sliding_window, softcap)
    out = step.own.attend(step.backend, *attended, distances)  # [R, H, D]
    return out[:, None], None


# No mask function is registered, so transformers builds no mask. The tree has its own.
AttentionInterface.register(NAME, tree_attention_forward)


class _Layer(CacheLayerMixin):
    """A layer that knows nothing of the past. Positions and masks come from elsewhere."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    # its name before transformers 5.13
    get_max_cache_shape = get_max_length


class TreeLayer(_Layer):
    """Keys and values of one layer during a step."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [R, G, 1, D] to the rows' cells; returns the layer's pools."""
        step = current()
        assert step is not None
        for pool, states in ((self.keys, key_states), (self.values, value_states)):
            step.backend.scatter_rows(pool, step.rows.cell, states[:, :, 0].contiguous())
        return self.keys, self.values


class CachedLayer(_Layer):
    """Keeps the keys and values [B, G, T, D] of one call, so that a session can take them."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def kept() -> Cache:
    """Make a cache that starts empty and keeps the keys and values of one call."""
    return Cache(layer_class_to_replicate=CachedLayer)


class TreeCache(Cache):
    """The pools of all layers as a model's cache; made once per session."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[TreeLayer() for _ in range(num_layers)])

    def point_to(self, key: Sequence[Tensor], value: Sequence[Tensor]) -> None:
        """Use these pools [cells, G, D], by layer. A pool that has grown is another tensor than before."""
        for layer, keys, values in zip(self.layers, key, value, strict=True):
            layer.keys, layer.values, layer.is_initialized = keys, values, True


def with_cross(own: Cache, cross: Cache, *, is_known: bool) -> EncoderDecoderCache:
    """Join both caches; `is_known`: keys and values of the encoder states are in them already."""
    both = EncoderDecoderCache(own, cross)
    both.is_updated = dict.fromkeys(range(len(cross.layers)), is_known)
    return both
