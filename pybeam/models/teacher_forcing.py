"""Cross-attention of given outputs in plain torch: all positions of all outputs of a source at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.base import Alignment
from pybeam.transfer import to_device

if TYPE_CHECKING:
    from pybeam.models.transformer_session import TransformerSession


def cross_attention(
    session: TransformerSession,
    state: Tensor,
    hypotheses: Sequence[Sequence[int]],
    alignment: Alignment,
) -> list[Tensor]:
    """``mean over heads of softmax(q k^T / sqrt(D))`` of one layer, [tokens + 1, E] for each hypothesis.

    Args:
        session: of the model.
        state: [E, d], the encoder's states of the source.
        hypotheses: ids without start token and EOS.
        alignment: the layer and the heads.
    """
    model, decoder = session.model, session.model.decoder
    heads = decoder.num_heads
    num, longest = len(hypotheses), 1 + max(map(len, hypotheses))
    # what is behind an output is seen by nobody before it
    padded = [[model.start_id, *one, *[0] * (longest - 1 - len(one))] for one in hypotheses]
    token = to_device(padded, torch.int32, model.device).view(-1)  # [B * T]
    position = torch.arange(longest, dtype=torch.int32, device=model.device).repeat(num)
    key_value = model.cross_key_value(state)  # [E, layers * 2 * d]
    key_value = key_value.view(state.shape[0], len(decoder.layers), 2, heads, -1)
    x = decoder.embed(token, position)  # [B * T, d]
    last = alignment.layer % len(decoder.layers)
    for i, layer in enumerate(decoder.layers):
        qkv = layer.qkv(session.before(layer.self_norm, x)).view(num, longest, 3, heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # [B, H, T, D] each
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        y = y.transpose(1, 2).reshape(num * longest, -1)  # [B * T, d]
        x = session.after(layer.self_norm, layer.self_out.add(x, y))
        query = layer.cross_query(session.before(layer.cross_norm, x))
        query = query.view(num, longest, heads, -1).transpose(1, 2)  # [B, H, T, D]
        key, value = key_value[:, i].permute(1, 2, 0, 3)  # [H, E, D] each
        score = query.float() @ key.float().transpose(1, 2) * query.shape[-1] ** -0.5
        weight = score.softmax(-1)  # [B, H, T, E]
        if i == last:
            break
        y = (weight.to(value.dtype) @ value).transpose(1, 2).reshape(num * longest, -1)
        x = session.after(layer.cross_norm, layer.cross_out.add(x, y))
        x = session.inner(layer, x)
    if alignment.heads is not None:
        weight = weight[:, list(alignment.heads)]
    mean = weight.mean(1).cpu()  # [B, T, E]
    return [rows[: len(one) + 1] for rows, one in zip(mean, hypotheses, strict=True)]
