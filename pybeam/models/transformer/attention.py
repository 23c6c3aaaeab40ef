"""Given outputs sent through the decoder once, all positions at a time: their attention and their logits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.transfer import to_device
from pybeam.models.base import Alignment
from pybeam.models.transformer.positions import decoder_rows


class Pass(Protocol):
    """The parts of a transformer's session that such a pass needs."""

    model: Any

    def cross_keys_and_values(self, state: Tensor) -> Tensor: ...
    def before(self, norm: Any, x: Tensor) -> Tensor: ...
    def after(self, norm: Any, x: Tensor) -> Tensor: ...
    def inner(self, layer: Any, x: Tensor) -> Tensor: ...


def cross_attention(
    session: Pass,
    state: Tensor,
    hypotheses: Sequence[Sequence[int]],
    alignment: Alignment,
) -> list[Tensor]:
    """Compute ``mean over heads of softmax(q k^T / sqrt(D))`` of one layer, [tokens + 1, E] per hypothesis.

    Args:
        session: a session of the model.
        state: [E, d], the encoder's states of the source.
        hypotheses: ids without start token and EOS.
        alignment: the layer and the heads.
    """
    last = alignment.layer % len(session.model.decoder.layers)
    weight, _ = next(itertools.islice(_layers(session, state, hypotheses), last, None))
    if alignment.heads is not None:
        weight = weight[:, list(alignment.heads)]
    mean = weight.mean(1).cpu()  # [B, T, E]
    return [rows[: len(one) + 1] for rows, one in zip(mean, hypotheses, strict=True)]


def head_attention(
    session: Pass,
    state: Tensor,
    tokens: Sequence[int],
    heads: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor]:
    """Return the attention of single heads, and the logits, while one given output is made.

    Args:
        session: a session of the model.
        state: [E, d], the encoder's states of the source.
        tokens: ids without start token and EOS.
        heads: layer and head, each from 0.

    Returns:
        Weights [N, tokens + 1, E] of the N heads, and logits [tokens + 1, V], float32 on the host. Row t
        belongs to the step whose logits give token t.
    """
    model = session.model
    weights = []
    for weight, x in _layers(session, state, [tokens]):
        weights.append(weight[0])
        last = x
    if model.decoder.final_norm is not None:
        last = model.decoder.final_norm(last)
    chosen = torch.stack([weights[layer][head] for layer, head in heads])
    return chosen.cpu(), model.output(last).float().cpu()


def _layers(
    session: Pass, state: Tensor, hypotheses: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each layer's attention over the source [B, H, T, E], float32, and its output [B * T, d]."""
    model, decoder = session.model, session.model.decoder
    heads = decoder.num_heads
    num, longest = len(hypotheses), 1 + max(map(len, hypotheses))
    # padding behind an output is causal: no token before it sees it
    padded = [[model.start_id, *one, *[0] * (longest - 1 - len(one))] for one in hypotheses]
    token = to_device(padded, torch.int32, model.device).view(-1)  # [B * T]
    position = torch.arange(longest, dtype=torch.int32, device=model.device).repeat(num)
    # as they were when the outputs were found
    key_value = session.cross_keys_and_values(state).to(model.dtype)  # [E, layers, 2, H, D]
    x = decoder.embed(token, decoder_rows(model.config, token, position))  # [B * T, d]
    for i, layer in enumerate(decoder.layers):
        qkv = layer.qkv(session.before(layer.self_norm, x)).view(num, longest, 3, heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # [B, H, T, D] each
        bias = (
            decoder.relative[i].causal_mask(longest).to(query.dtype) if decoder.relative else None
        )
        y = F.scaled_dot_product_attention(
            query, key, value, bias, is_causal=bias is None, scale=decoder.scale
        )
        y = y.transpose(1, 2).reshape(num * longest, -1)  # [B * T, d]
        x = session.after(layer.self_norm, layer.self_out.add(x, y))
        query = layer.cross_query(session.before(layer.cross_norm, x))
        query = query.view(num, longest, heads, -1).transpose(1, 2)  # [B, H, T, D]
        key, value = key_value[:, i].permute(1, 2, 0, 3)  # [H, E, D] each
        score = query.float() @ key.float().transpose(1, 2) * decoder.scale
        weight = score.softmax(-1)  # [B, H, T, E]
        y = (weight.to(value.dtype) @ value).transpose(1, 2).reshape(num * longest, -1)
        x = session.after(layer.cross_norm, layer.cross_out.add(x, y))
        x = session.inner(layer, x)
        yield weight, x
