"""Send sources through a model's encoder, and prompts through its decoder, in padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from pybeam.models.base import MAX_ENCODER_TOKENS
from pybeam.models.huggingface.model import EncoderStates, HuggingFaceModel


@dataclass
class EncoderOutput(BaseModelOutput):
    """Encoder states [A, E, d], with all that the decoders of some models look for beside them."""

    attention_mask: Tensor | None = None  # [A, E], which states are real
    router_logits: None = None
    router_probs: None = None


class Encoded(NamedTuple):
    """Encoder states of some sources."""

    members: list[int]  # numbers of the sources
    states: Tensor  # [A, E, d], padded on the right
    lengths: list[int]  # length of each, without padding


def encoded(model: HuggingFaceModel, sources: Sequence[Any]) -> Iterator[Encoded]:
    """Yield the encoder's states of all sources, one batch at a time."""
    encoder = model.encoder
    assert encoder is not None
    groups: dict[object, list[int]] = {}
    for i, source in enumerate(sources):
        # features of different lengths would need a mask that not every model takes
        is_known = isinstance(source, EncoderStates)
        kind = "states" if is_known else source.shape if model.takes_features else "ids"
        groups.setdefault(kind, []).append(i)
    for kind, members in groups.items():
        lengths = [model.source_length(sources[i]) for i in members]
        for part in batches(lengths):
            index = [members[i] for i in part]
            batch = [sources[i] for i in index]
            if kind == "states":
                known = [source.states.to(model.device) for source in batch]
                own = [len(states) for states in known]
                yield Encoded(index, pad_sequence(known, batch_first=True), own)
            elif kind == "ids":
                ids, mask = padded(model, batch)
                states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
                yield Encoded(index, states, [source.numel() for source in batch])
            else:
                name = model.network.main_input_name
                features = torch.stack(batch).to(model.device, model.network.dtype)
                states = encoder(**{name: features}).last_hidden_state
                yield Encoded(index, states, [states.shape[1]] * len(batch))


def padded(model: HuggingFaceModel, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ids [A, E], padded on the right, and a mask [A, E] of real ids, both on the device."""
    pad_id = 0 if model.pad_id is None else model.pad_id
    ids = pad_sequence(list(batch), batch_first=True, padding_value=pad_id)
    length = torch.tensor([source.numel() for source in batch])
    mask = torch.arange(ids.shape[1]) < length[:, None]
    return ids.to(model.device), mask.long().to(model.device)


def batches(lengths: Sequence[int], max_tokens: int | None = None) -> Iterator[list[int]]:
    """Return the indices of each batch: similar lengths, at most `max_tokens` with their padding."""
    max_tokens = MAX_ENCODER_TOKENS if max_tokens is None else max_tokens
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        stop = start + max(1, max_tokens // max(1, lengths[order[start]]))
        yield order[start:stop]
        start = stop
