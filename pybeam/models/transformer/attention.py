"""Given outputs sent through the decoder once, all positions at a time: their attention and their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.transfer import to_device
from pybeam.models.base import Alignment
from pybeam.models.transformer.layers import Layer
from pybeam.models.transformer.running import run_layers


def cross_attention(
    session: Any,
    state: Tensor,
    hypotheses: Sequence[Sequence[int]],
    alignment: Alignment,
) -> list[Tensor]:
    """Compute ``mean over heads of softmax(q k^T / sqrt(D))`` of one layer, [tokens + 1, E] per hypothesis.

    Args:
        session: a `TransformerSession`.
        state: [E, d], the encoder's states of the source.
        hypotheses: ids without start token and EOS.
        alignment: the layer and the heads.
    """
    last = alignment.layer % len(session.model.decoder.layers)
    [*_, weight], _ = _passed(session, state, hypotheses, last + 1)
    if alignment.heads is not None:
        weight = weight[:, list(alignment.heads)]
    mean = weight.mean(1).cpu()  # [B, T, E]
    return [rows[: len(one) + 1] for rows, one in zip(mean, hypotheses, strict=True)]


def head_attention(
    session: Any,
    state: Tensor,
    tokens: Sequence[int],
    heads: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor]:
    """Return the attention of single heads, and the logits, while one given output is made.

    Args:
        session: a `TransformerSession`.
        state: [E, d], the encoder's states of the source.
        tokens: ids without start token and EOS.
        heads: layer and head, each from 0.

    Returns:
        Weights [N, tokens + 1, E] of the N heads, and logits [tokens + 1, V], float32 on the host. Row t
        belongs to the step whose logits give token t.
    """
    weights, states = _passed(session, state, [tokens], len(session.model.decoder.layers))
    chosen = torch.stack([weights[layer][0, head] for layer, head in heads])
    return chosen.cpu(), session.model.output(states).float().cpu()


def _passed(
    session: Any, state: Tensor, hypotheses: Sequence[Sequence[int]], num_layers: int
) -> tuple[list[Tensor], Tensor]:
    """Return the attention of the first layers over the source, [B, H, T, E] float32 each, and their states.

    The states are [B * T, d], behind the final norm.
    """
    model = session.model
    decoder = replace(model.decoder, layers=model.decoder.layers[:num_layers])
    num, longest = len(hypotheses), 1 + max(map(len, hypotheses))
    # padding behind an output is causal: no token before it sees it
    padded = [[model.start_id, *one, *[0] * (longest - 1 - len(one))] for one in hypotheses]
    token = to_device(padded, torch.int32, model.device).view(-1)  # [B * T]
    position = torch.arange(longest, dtype=torch.int32, device=model.device).repeat(num)
    # as they were when the outputs were found
    key_value = session.cross_keys_and_values(state).to(model.dtype)  # [E, layers, 2, H, D]
    weights = []

    def heads_first(x: Tensor) -> Tensor:
        return x.view(num, longest, decoder.num_heads, -1).transpose(1, 2)  # [B, H, T, D]

    def rows_first(y: Tensor) -> Tensor:
        return y.transpose(1, 2).reshape(num * longest, -1)  # [B * T, H D]

    def attend_own(i: int, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        relative = layer.relative
        bias = None if relative is None else relative.causal_mask(longest).to(query.dtype)
        key, value = (x.to(model.cache_dtype).to(x.dtype) for x in (key, value))
        query, key, value = map(heads_first, (query, key, value))
        y = F.scaled_dot_product_attention(
            query, key, value, bias, is_causal=bias is None, scale=decoder.scale
        )
        return rows_first(y)

    def attend_cross(i: int, query: Tensor) -> Tensor:
        key, value = key_value[:, i].permute(1, 2, 0, 3)  # [H, E, D] each
        score = heads_first(query).float() @ key.float().transpose(1, 2) * decoder.scale
        weights.append(score.softmax(-1))
        return rows_first(weights[-1].to(value.dtype) @ value)

    inputs = token, position
    states = run_layers(session.backend, decoder, inputs, attend_own, attend_cross)
    assert states is not None
    return weights, states
