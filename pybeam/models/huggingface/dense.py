"""Decode calls of a wrapped model that must keep its own cache, with one line per row.

A quarter of the classes of transformers needs it: attention that does not go through `AttentionInterface`
(Bloom, Falcon, GPT-J, XGLM), positions that a decoder alone counts itself (BART's and its kin's), keys and
values of different sizes (DeepSeek-V3 and others with latent attention), states in place of keys and values
(Mamba). A step gathers the lines of its rows from the caches of earlier steps. That copies every line once,
as `generate` does. Where a cache is made of keys and values alone, lines of different lengths share a call
and are padded on the left.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

from pybeam.backends import Backend
from pybeam.models.base import Session
from pybeam.models.huggingface.attention import CannotAttend
from pybeam.models.huggingface.encoding import EncoderOutput, batches, encoded
from pybeam.models.huggingface.model import HuggingFaceModel
from pybeam.models.rows import Rows

CACHE_NAMES = (
    "cache",
    "past_key_values",
    "cache_params",
)  # how transformers models call their cache


# a cache, and the numbers of lines in it
Part = tuple[Cache | None, list[int]]


class Line(NamedTuple):
    """The tokens behind one row: a line of a cache."""

    cache: Cache | None  # None: there is no past
    place: int  # number of the line in the cache
    length: int  # tokens in it; padding comes before them


class DenseSession(Session):
    """A line of a dense cache per row. Encoder states and prompts are there once per row too."""

    def __init__(self, model: HuggingFaceModel, backend: Backend) -> None:
        self._model = model
        names = [name for name in CACHE_NAMES if name in model.parameters]
        if not names:
            raise CannotAttend(f"it takes none of {CACHE_NAMES}, so that its state cannot be moved")
        self._cache_name = names[0]
        self._tells_positions = model.memory.is_told and "position_ids" in model.parameters
        self._skips_logits = "logits_to_keep" in model.parameters
        self._pads, self._takes_mask = model.memory.pads, takes_mask(model)
        self._width = 0
        self._states: dict[int, Tensor] = {}  # slot -> encoder states [E, d]
        self._start: dict[int, tuple[int, Line]] = {}  # slot -> first token, the past before it
        # by (slot, entry): the past of a row, and the past with the row's own token
        self._behind: dict[tuple[int, int], Line] = {}
        self._with: dict[tuple[int, int], Line] = {}

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._width = max(self._width, width)

    def release(self, slots: Sequence[int]) -> None:
        gone = set(slots)
        for slot in gone:
            self._states.pop(slot, None)
            self._start.pop(slot, None)
        self._forget(gone)

    def encode(self, sources: Sequence[Any], indices: Sequence[int], slots: Sequence[int]) -> None:
        model, nothing = self._model, Line(None, 0, 0)
        with model.lock:
            if model.is_encoder_decoder:
                for index, states, length in encoded(model, sources):
                    for i, own, num in zip(index, states, length, strict=True):
                        self._states[slots[i]] = own[:num]
                        self._start[slots[i]] = model.start_id, nothing
                return
            lengths = [source.numel() - 1 for source in sources]
            before = [nothing] * len(sources)
            # prompts share a call only if the model can skip the logits of their tokens
            max_tokens = None if self._pads and self._skips_logits else 1
            for part in batches(lengths, max_tokens):
                part = [i for i in part if lengths[i]]
                if not part:
                    continue
                prompts = [sources[i][:-1] for i in part]
                ids = pad_sequence(prompts, batch_first=True, padding_side="left")
                cache, _ = self._call(ids.to(model.device), None, [lengths[i] for i in part])
                for place, i in enumerate(part):
                    before[i] = Line(cache, place, lengths[i])
            for source, slot, line in zip(sources, slots, before, strict=True):
                self._start[slot] = int(source[-1]), line

    def step(self, rows: Rows) -> Tensor:
        num_rows = int(rows.offset[-1])  # rows behind it are padding
        slots = rows.row_slot[:num_rows].tolist()
        keys = list(zip(slots, rows.entry[:num_rows].tolist(), strict=True))
        tokens, positions = rows.token.tolist(), rows.position.tolist()
        groups: dict[object, dict[Cache | None, list[int]]] = {}  # group -> cache -> rows
        for r, key in enumerate(keys):
            if positions[r] == 0:
                tokens[r], self._behind[key] = self._start[slots[r]]
            line = self._behind[key]
            groups.setdefault(self._group(line, slots[r]), {}).setdefault(line.cache, []).append(r)
        shape = rows.token.numel(), self._model.vocab_size
        logits = torch.zeros(shape, dtype=self._model.network.dtype, device=self._model.device)
        with self._model.lock:
            for caches in groups.values():
                members = [r for part in caches.values() for r in part]
                lines = [self._behind[keys[r]] for r in members]
                ids = torch.tensor([[tokens[r]] for r in members], device=self._model.device)
                past = [
                    (cache, [self._behind[keys[r]].place for r in part])
                    for cache, part in caches.items()
                ]
                states = [self._states[slots[r]] for r in members] if self._states else []
                lengths = [line.length + 1 for line in lines]
                before = gathered(past, max(lengths) - 1 if self._pads else None)
                cache, found = self._call(ids, before, lengths, states)
                for i, (r, line) in enumerate(zip(members, lines, strict=True)):
                    self._with[keys[r]] = Line(cache, i, line.length + 1)
                logits[torch.tensor(members, device=found.device)] = found
        return logits  # [R, V]

    def advance(self, source: Tensor, target: Tensor) -> None:
        moved = {}
        for old, new in zip(source.tolist(), target.tolist(), strict=True):
            if old >= 0 and new >= 0:
                moved[divmod(new, self._width)] = self._with[divmod(old, self._width)]
        # a line that nothing continues would keep its whole cache
        self._forget({slot for slot, _ in moved})
        self._behind.update(moved)

    def _forget(self, slots: set[int]) -> None:
        for lines in (self._behind, self._with):
            for key in [key for key in lines if key[0] in slots]:
                del lines[key]

    def _group(self, line: Line, slot: int) -> object:
        """The group of this line. Lines of one group can share a call."""
        # a mask is of features, which are more than the states that they become
        num_states = len(self._states[slot]) if self._model.takes_features else None
        if line.cache is None:
            return 0, num_states
        return -1 if self._pads or not has_length(line.cache) else line.length, num_states

    def _call(
        self,
        ids: Tensor,
        cache: Cache | None,
        lengths: Sequence[int],
        states: Sequence[Tensor] = (),
    ) -> tuple[Cache, Tensor]:
        """Run the model on tokens [R, T]. Returns the new cache, and logits [R, V] behind the last token.

        `lengths` [R] count all tokens of a line, new ones included. Padding of the cache or of `ids` stands
        before them.
        """
        model = self._model
        inputs: dict[str, object] = {"use_cache": True}
        if model.is_encoder_decoder:
            own = DynamicCache(config=model.network.config.get_text_config(decoder=True))
            cache = cache or EncoderDecoderCache(own, DynamicCache())
            length = torch.tensor([len(own) for own in states], device=model.device)
            padded = pad_sequence(list(states), batch_first=True)  # [R, E, d]
            # lines that once shared a call with a longer source are still padded to its length
            known = max(int(length.max()), cache.cross_attention_cache.get_seq_length())
            mask = torch.arange(known, device=model.device) < length[:, None]
            if not model.takes_features:
                inputs["attention_mask"] = mask.long()
            padded = F.pad(padded, (0, 0, 0, known - padded.shape[1]))
            inputs["encoder_outputs"] = EncoderOutput(padded, attention_mask=mask.long())
            inputs["decoder_input_ids"] = ids
        else:
            cache = cache or DynamicCache(config=model.network.config)
            inputs["input_ids"] = ids
            length = torch.tensor(lengths, device=ids.device)[:, None]
            place = torch.arange(max(lengths), device=ids.device) + length - max(lengths)
            if self._takes_mask:
                is_real = place >= 0 if self._pads else torch.ones_like(place)
                inputs["attention_mask"] = is_real.long()  # [R, longest]
            # some networks count from what they remember of another call
            if self._tells_positions:
                inputs["position_ids"] = place[:, -ids.shape[1] :].clamp(min=0)
            if self._skips_logits:
                inputs["logits_to_keep"] = 1
        out = model.network(**inputs, **{self._cache_name: cache})
        return cache, out.logits[:, -1]


def has_length(cache: Cache) -> bool:
    """Whether lines of this cache have a length, as keys and values have, but not recurrent states."""
    if isinstance(cache, EncoderDecoderCache):
        return True
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def takes_mask(model: HuggingFaceModel) -> bool:
    """Whether a call of a decoder may say which entries of its cache count. States have no entries."""
    if model.is_encoder_decoder or "attention_mask" not in model.parameters:
        return False
    is_kept = model.cache_name in model.parameters
    return is_kept and has_length(DynamicCache(config=model.network.config))


def can_be_padded(model: HuggingFaceModel) -> bool:
    """Whether lines of different lengths can share a dense cache, the shorter ones padded.

    Keys and values can be padded. States, and what belongs to them, cannot.
    """
    if not takes_mask(model):
        return False
    layers = DynamicCache(config=model.network.config).layers
    # other classes, even those derived from these, may hold anything else
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


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
