"""How a transformers model attends over a token tree: one attention function, one cache.

Both are transformers' own extension points. `TreeLayer.update` writes a step's keys and values to the
rows' cells and hands back the whole pool instead of a longer copy; the model passes that on to the
attention function that its config names, which is ours for the length of the step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from pybeam.models.base import Rows

NAME = "pybeam"
# what a model may add to its attention scores and tree attention cannot
ADDED = ("softcap", "s_aux")
_current = threading.local()


class CannotAttend(ValueError):
    """The model's attention is not softmax(scale * query . key) value over what the tree lets it see."""


class Cells(NamedTuple):
    """The cells that each source's rows attend over, as `ops.tree_attention` takes them."""

    slot: Tensor  # [A] int32
    cell: Tensor  # [S, U] int32
    num_cells: Tensor  # [S] int32
    mask: Tensor | None = None  # [S, U, W] int64
    position: Tensor | None = None  # [S, U] int32, of the token in each cell
    last: Tensor | None = None  # [S, K] int32, positions of the source's rows, by entry

    def within(self, window: int) -> Cells:
        """The same cells, those of the last `window` positions in sight."""
        assert self.mask is not None and self.position is not None and self.last is not None
        is_far = self.position[..., None] <= self.last[:, None] - window  # [S, U, K]
        bit = torch.arange(is_far.shape[2], device=is_far.device) & 63
        words = (is_far.long() << bit).split(64, 2)  # bits of each word of the mask
        far = torch.stack([word.sum(2) for word in words], 2)  # [S, U, W]
        return self._replace(mask=self.mask & ~far)


def by_entry(rows: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [R, ...] of rows in a table [A, K, ...] of sources and entries, and each row's place [R] in
    A * K of it, behind them for padding.
    """
    num_sources, width = rows.slot.numel(), rows.tree.row_cell.shape[1]
    number = torch.arange(rows.token.numel(), dtype=torch.int32, device=rows.token.device)
    source = torch.searchsorted(rows.offset, number, right=True) - 1
    place = source * width + rows.bit
    # a line more, for padding rows
    table = values.new_zeros((num_sources + 1) * width, *values.shape[1:])
    table = table.index_copy_(0, place, values)[: num_sources * width]
    return table.view(num_sources, width, *values.shape[1:]), place


class Relative(ABC):
    """Self-attention of a step whose scores have biases for how far away tokens are."""

    @abstractmethod
    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """[R, H, D] of queries [R, H, D] over pools [cells, G, D]."""


@dataclass
class Step:
    """One step of a session: its rows, and where they find keys and values."""

    backend: object
    rows: Rows
    own: Cells
    cross: Cells | None = None
    cross_key: Sequence[Tensor] = ()  # by layer; how cross-attention is told from self-attention
    position: Tensor | None = None  # [R, 1, d], embeddings of the rows' positions
    relative: Relative | None = None  # where self-attention has biases
    longest: int | None = None  # no row sees more positions; None: not known on the host
    windows: dict[int, Cells] = field(default_factory=dict)
    given_windows: set[int] = field(default_factory=set)  # by the model, in use or not

    def cells_within(self, window: int | None) -> Cells:
        """What self-attention with this window sees."""
        if window is None:
            return self.own
        self.given_windows.add(window)
        if self.longest is not None and self.longest <= window:
            return self.own
        if window not in self.windows:
            self.windows[window] = self.own.within(window)
        return self.windows[window]


def current() -> Step | None:
    """The step that this thread is in."""
    return getattr(_current, "step", None)


@contextmanager
def attending(configs: Sequence, step: Step) -> Iterator[None]:
    """Within it, models with these configs attend over the step's cells."""
    _current.step = step
    try:
        with _replacing(configs):
            yield
    finally:
        _current.step = None


@contextmanager
def catching(configs: Sequence) -> Iterator[list[tuple[Tensor | None, int]]]:
    """Within it, models with these configs compute no attention.

    What they would add to its scores is in the list afterwards, with the number of keys, a call each.
    """
    caught = _current.caught = []
    try:
        with _replacing(configs):
            yield caught
    finally:
        _current.caught = None


@contextmanager
def _replacing(configs: Sequence) -> Iterator[None]:
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name


def tree_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """An attention function as `transformers.AttentionInterface` wants it.

    Args:
        query: [R, H, 1, D].
        key, value: [cells, G, D], the pools of this layer.

    Returns:
        [R, 1, H, D], and no weights.

    Raises:
        CannotAttend: the model adds something to its attention scores.
    """
    position_bias = kwargs.get("position_bias")
    caught = getattr(_current, "caught", None)
    if caught is not None:
        caught.append((position_bias, key.shape[2]))
        return query.transpose(1, 2), None
    step = current()
    if step is None:
        raise RuntimeError(
            f"attention {NAME!r} is for sessions of pybeam; load the model with another, such as 'sdpa'"
        )
    for name in ADDED:
        if kwargs.get(name) is not None:
            raise CannotAttend(f"its attention has a `{name}`")
    if query.shape[2] != 1 or key.ndim != 3:
        raise CannotAttend("its attention does not take keys and values as the cache returns them")
    rows, layer = step.rows, module.layer_idx
    is_cross = layer < len(step.cross_key) and key is step.cross_key[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if step.relative is not None and not is_cross:
        return step.relative(layer, query[:, :, 0], key, value, scale)[:, None], None
    if step.relative is None and position_bias is not None:
        raise CannotAttend("its attention has a `position_bias`")
    cells = step.cross if is_cross else step.cells_within(sliding_window)
    out = step.backend.tree_attention(
        query[:, :, 0],
        key,
        value,
        rows.offset,
        cells.slot,
        cells.cell,
        cells.num_cells,
        cells.mask,
        None if cells.mask is None else rows.bit,
        scale,
    )  # [R, H, D]
    return out[:, None], None


# No mask function goes with it: transformers then builds no mask, and the tree has its own.
AttentionInterface.register(NAME, tree_attention_forward)


class _Layer(CacheLayerMixin):
    """A layer that has nothing of the past to give; positions and masks come from elsewhere."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class TreeLayer(_Layer):
    """Keys and values of one layer during a step."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        """Write [R, G, 1, D] to the rows' cells; returns the layer's pools."""
        step = current()
        for pool, states in ((self.keys, key_states), (self.values, value_states)):
            step.backend.scatter_rows(pool, step.rows.cell, states[:, :, 0].contiguous())
        return self.keys, self.values


class KeptLayer(_Layer):
    """Keeps what one call gives it, so that a session can take it from there: [B, G, T, D] each."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def kept() -> Cache:
    """A cache that starts empty and keeps what one call gives it."""
    return Cache(layer_class_to_replicate=KeptLayer)


class TreeCache(Cache):
    """The pools of all layers as a model's cache; made once per session."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[TreeLayer() for _ in range(num_layers)])

    def point_to(self, key: Sequence[Tensor], value: Sequence[Tensor]) -> None:
        """Use these pools, which are others once they have grown."""
        for layer, layer.keys, layer.values in zip(self.layers, key, value, strict=True):
            layer.is_initialized = True


def with_cross(own: Cache, cross: Cache, *, is_known: bool) -> EncoderDecoderCache:
    """Both caches as one; `is_known`: keys and values of the encoder states are there already."""
    both = EncoderDecoderCache(own, cross)
    both.is_updated = dict.fromkeys(range(len(cross.layers)), is_known)
    return both
