"""Decode calls of a wrapped model that must keep its own cache, with one line per row.

This is the fallback for models whose attention cannot be replaced. A step gathers the lines of its rows
from the caches of earlier steps. That copies every line once, as `generate` does. Where a cache is made
of keys and values alone, lines of different lengths share a call and are padded on the left.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from pybeam.backends import Backend
from pybeam.models.base import Session
from pybeam.models.huggingface.attention import CannotAttend
from pybeam.models.huggingface.encoding import EncoderOutput, batches, encoded
from pybeam.models.huggingface.lines import gathered, has_length
from pybeam.models.huggingface.model import HuggingFaceModel
from pybeam.models.rows import Rows

CACHE_NAMES = ("past_key_values", "cache_params")  # how transformers models call their cache


class Line(NamedTuple):
    """The tokens behind one row: a line of a cache."""

    cache: Cache | None  # None: there is no past
    place: int  # number of the line in the cache
    length: int  # tokens in it; padding comes before them


def takes_mask(model: HuggingFaceModel) -> bool:
    """Whether a call may say which entries of its cache count."""
    parameters = inspect.signature(model.network.forward).parameters
    return "past_key_values" in parameters and "attention_mask" in parameters


def takes_positions(model: HuggingFaceModel) -> bool:
    """Whether a call of a decoder alone may say where its tokens stand."""
    return "position_ids" in inspect.signature(model.network.forward).parameters


class DenseSession(Session):
    """A line of a dense cache per row. Encoder states and prompts are there once per row too."""

    def __init__(self, model: HuggingFaceModel, backend: Backend) -> None:
        self._model = model
        parameters = inspect.signature(model.network.forward).parameters
        names = [name for name in CACHE_NAMES if name in parameters]
        if not names:
            raise CannotAttend(f"it takes none of {CACHE_NAMES}, so that its state cannot be moved")
        self._cache_name = names[0]
        self._takes_mask = takes_mask(model)
        self._tells_positions = model.memory.is_told and takes_positions(model)
        self._skips_logits = "logits_to_keep" in parameters
        self._pads = model.memory.pads
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
