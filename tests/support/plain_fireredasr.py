"""FireRedASR-AED in plain torch, a padded batch at a time, from a checkpoint with its published names.

It is written anew from the paper (arXiv:2501.14350), Conformer's (arXiv:2005.08100) and the rules of the
published modules, and uses nothing of the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# frames of zeros that follow every batch
EXTRA = 6


@dataclass
class PlainFireRed:
    """The network; `search` of `support.seed_beam_search` takes it as a model.

    `counts_starts` says which positions count: those whose first frame is in the recording, as in the first
    release and in FireRedASR2, or those that see nothing else, as in the revision of December 2025.
    """

    weights: Mapping[str, Tensor]
    sizes: Any
    counts_starts: bool = True

    @cached_property
    def config(self) -> dict:
        sizes = self.sizes
        return dict(
            decoder_start_token_id=sizes.sos_id,
            eos_token_id=sizes.eos_id,
            decoder_layers=sizes.n_layers_dec,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.weights["decoder.tgt_word_emb.weight"].dtype

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def heads(self, name: str, x: Tensor) -> Tensor:
        """Project, and split into heads: [N, H, T, D]."""
        return self.linear(name, x).unflatten(-1, (self.sizes.n_head, -1)).transpose(1, 2)

    def encode(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        """States [N, Ti, d] and their mask [N, 1, Ti]."""
        lengths = torch.tensor([len(source) for source in sources])
        x = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True).to(self.dtype)
        x = F.pad(x, (0, 0, 0, EXTRA))[:, None]
        name = "encoder.input_preprocessor"
        for i in (0, 2):
            conv = f"{name}.conv.{i}"
            bias = self.weights[f"{conv}.bias"]
            x = F.conv2d(x, self.weights[f"{conv}.weight"], bias, stride=2).relu()
        x = self.linear(f"{name}.out", x.permute(0, 2, 1, 3).flatten(2))  # [N, Ti, d]
        if self.counts_starts:
            length = (lengths + 3) // 4
        else:
            length = ((lengths - 1) // 2 - 1) // 2
        mask = (torch.arange(x.shape[1]) < length[:, None])[:, None]
        for i in range(self.sizes.n_layers_enc):
            x = self.encoder_layer(f"encoder.layer_stack.{i}", x, mask)
        return x, mask

    def encoder_layer(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.feed_forward(f"{name}.ffn1", x) / 2
        x = x + self.relative_attention(f"{name}.mhsa", x, mask)
        x = x + self.convolution(f"{name}.conv", x, mask)
        x = x + self.feed_forward(f"{name}.ffn2", x) / 2
        return self.norm(f"{name}.layer_norm", x)

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        y = self.linear(f"{name}.net.1", self.norm(f"{name}.net.0", x))
        return self.linear(f"{name}.net.4", y * y.sigmoid())

    def relative_attention(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        """The sum over all pairs of positions, as the formula has it."""
        query, key, value = (
            self.heads(f"{name}.w_{part}s", self.norm(f"{name}.layer_norm_{part}", x))
            for part in "qkv"
        )
        bias = [self.weights[f"{name}.pos_bias_{part}"][:, None] for part in "uv"]
        table = self.weights["encoder.positional_encoding.pe"][0]
        place = torch.arange(x.shape[1])
        # the table begins with the largest distance
        row = len(table) // 2 - (place[:, None] - place)  # [Ti, Ti]
        position = self.linear(f"{name}.linear_pos", table[row]).unflatten(-1, key.shape[1::2])
        score = torch.einsum("nhid,nhjd->nhij", query + bias[0], key)
        score = score + torch.einsum("nhid,ijhd->nhij", query + bias[1], position)
        score = score / query.shape[-1] ** 0.5
        weight = score.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return self.linear(f"{name}.fc", (weight @ value).transpose(1, 2).flatten(2))

    def convolution(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        # what lies behind a recording is silent
        y = self.norm(f"{name}.pre_layer_norm", x).transpose(1, 2) * mask
        y = F.glu(F.conv1d(y, self.weights[f"{name}.pointwise_conv1.weight"]), dim=1)
        weight = self.weights[f"{name}.depthwise_conv.weight"]
        y = F.conv1d(y, weight, padding=weight.shape[-1] // 2, groups=len(weight))
        y = self.norm(f"{name}.batch_norm", y.transpose(1, 2))
        y = (y * y.sigmoid()).transpose(1, 2)
        y = F.conv1d(y, self.weights[f"{name}.pointwise_conv2.weight"])
        return (y * mask).transpose(1, 2)

    def decode(self, ys: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Logits [B, t, V] behind every token of `ys` [B, t]."""
        num = ys.shape[1]
        table = self.weights["decoder.tgt_word_emb.weight"]
        position = self.weights["decoder.positional_encoding.pe"][0, :num]
        x = table[ys] * table.shape[1] ** 0.5 + position
        # nobody looks at padding
        seen = torch.ones(num, num, dtype=torch.bool).tril() & (ys != self.sizes.pad_id)[:, None]
        for i in range(self.sizes.n_layers_dec):
            name = f"decoder.layer_stack.{i}"
            y = self.norm(f"{name}.self_attn_norm", x)
            x = x + self.attention(f"{name}.self_attn", y, y, seen)
            y = self.norm(f"{name}.cross_attn_norm", x)
            x = x + self.attention(f"{name}.cross_attn", y, states, mask)
            y = self.linear(f"{name}.mlp.w_1", self.norm(f"{name}.mlp_norm", x))
            x = x + self.linear(f"{name}.mlp.w_2", F.gelu(y))
        return self.norm("decoder.layer_norm_out", x) @ table.t()

    def attention(self, name: str, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            self.heads(f"{name}.w_{part}s", y)
            for part, y in zip("qkv", (x, memory, memory), strict=True)
        )
        score = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        weight = score.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return self.linear(f"{name}.fc", (weight @ value).transpose(1, 2).flatten(2))

    def step(self, ys, states, mask, caches) -> tuple[Tensor, list]:
        """As `support.seed_beam_search` asks; nothing is cached."""
        return self.decode(ys, states, mask)[:, -1], []
