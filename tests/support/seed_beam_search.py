"""The batch beam search of FireRedASR in plain torch: a batch, copied dense caches, padded masks.

It is written anew from the rules, for the tensors of a `SpeechTransformer` checkpoint, and uses nothing of
the library: convolutions, attention and search are torch's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

DEAD = 1e10  # finite, as in the original: 0 times it stays a number
# of the search, for the tests of its models
OPTIONS = {
    "greedy": {},
    "plain": dict(beam_size=4, nbest=4),
    "smoothed": dict(beam_size=3, nbest=2, softmax_smoothing=1.25, eos_penalty=0.6),
    "normalised": dict(beam_size=5, nbest=5, length_penalty=0.6, eos_penalty=0.8),
    "cut": dict(beam_size=4, nbest=3, decode_max_len=4, length_penalty=1.0, softmax_smoothing=0.8),
}


@dataclass
class DenseSpeech:
    """A Speech2Text model over padded batches; both stacks have `heads` heads."""

    weights: dict[str, Tensor]
    config: dict

    @classmethod
    def load(cls, directory: Path, config: dict) -> DenseSpeech:
        weights = load_file(directory / "model.safetensors")
        return cls({k.removeprefix("model."): v.double() for k, v in weights.items()}, config)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        )

    def positions(self, num: int) -> Tensor:
        half = self.config["d_model"] // 2
        exponent = torch.arange(half, dtype=torch.float64) / (half - 1)
        # the first token has position 2, behind that of padding
        angle = torch.arange(2, 2 + num)[:, None] / 10000**exponent
        return torch.cat((angle.sin(), angle.cos()), 1)  # [num, d]

    def attend(self, name: str, x: Tensor, memory: Tensor, mask: Tensor, heads: int) -> Tensor:
        def split(part: str, y: Tensor) -> Tensor:
            y = self.linear(f"{name}.{part}_proj", y)
            return y.unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, H, T, D]

        y = F.scaled_dot_product_attention(
            split("q", x), split("k", memory), split("v", memory), attn_mask=mask[:, None]
        )
        return self.linear(f"{name}.out_proj", y.transpose(1, 2).flatten(2))

    def inner(self, name: str, x: Tensor) -> Tensor:
        y = self.norm(f"{name}.final_layer_norm", x)
        return x + self.linear(f"{name}.fc2", self.linear(f"{name}.fc1", y).relu())

    def encode(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        """States [N, Ti, d] and their mask [N, 1, Ti]."""
        heads, states = self.config["encoder_attention_heads"], []
        for source in sources:
            x = source.double().t()[None]
            for i in range(self.config["num_conv_layers"]):
                weight = self.weights[f"encoder.conv.conv_layers.{i}.weight"]
                bias = self.weights[f"encoder.conv.conv_layers.{i}.bias"]
                x = F.conv1d(x, weight, bias, stride=2, padding=weight.shape[-1] // 2)
                x = F.glu(x, 1)
            states.append(x[0].t())
        lengths = torch.tensor([len(state) for state in states])
        x = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        mask = (torch.arange(x.shape[1]) < lengths[:, None])[:, None]
        x = x * self.config["d_model"] ** 0.5 + self.positions(x.shape[1])
        for i in range(self.config["encoder_layers"]):
            name = f"encoder.layers.{i}"
            y = self.norm(f"{name}.self_attn_layer_norm", x)
            x = self.inner(name, x + self.attend(f"{name}.self_attn", y, y, mask, heads))
        return self.norm("encoder.layer_norm", x), mask

    def step(self, ys, states, mask, caches) -> tuple[Tensor, list[Tensor]]:
        """Logits [N * B, V] of the last of `ys` [N * B, t], and each layer's output so far."""
        heads = self.config["decoder_attention_heads"]
        table = self.weights["decoder.embed_tokens.weight"]
        x = table[ys] * self.config["d_model"] ** 0.5 + self.positions(ys.shape[1])
        grown = []
        for i, cache in enumerate(caches):
            name = f"decoder.layers.{i}"
            last, everything = x[:, -1:], torch.ones(len(ys), 1, x.shape[1], dtype=torch.bool)
            y = self.norm(f"{name}.self_attn_layer_norm", x)
            last = last + self.attend(f"{name}.self_attn", y[:, -1:], y, everything, heads)
            y = self.norm(f"{name}.encoder_attn_layer_norm", last)
            last = last + self.attend(f"{name}.encoder_attn", y, states, mask, heads)
            last = self.inner(name, last)
            x = last if cache is None else torch.cat((cache, last), 1)
            grown.append(x)
        return self.norm("decoder.layer_norm", x[:, -1]) @ table.t(), grown


def batch_beam_search(
    model: DenseSpeech,
    sources: list[Tensor],
    *,
    beam_size: int = 1,
    nbest: int = 1,
    decode_max_len: int = 0,
    softmax_smoothing: float = 1.0,
    length_penalty: float = 0.0,
    eos_penalty: float = 1.0,
) -> list[list[tuple[list[int], float]]]:
    """Return the n-best of each source (tokens without start and EOS, score), best first."""
    start, eos = model.config["decoder_start_token_id"], model.config["eos_token_id"]
    states, mask = model.encode(sources)
    num, beam = len(sources), beam_size
    limit = decode_max_len or states.shape[1]
    states, mask = states.repeat_interleave(beam, 0), mask.repeat_interleave(beam, 0)
    ys = torch.full((num * beam, 1), start)
    scores = torch.tensor([0.0] + [-DEAD] * (beam - 1), dtype=torch.float64).repeat(num)
    is_finished = torch.zeros(num * beam, dtype=torch.bool)
    caches: list = [None] * model.config["decoder_layers"]
    first = torch.tensor([0.0] + [-DEAD] * (beam - 1), dtype=torch.float64)
    for _ in range(limit):
        logits, caches = model.step(ys, states, mask, caches)
        t_scores = (logits / softmax_smoothing).log_softmax(-1)
        t_scores[:, eos] *= eos_penalty
        top, token = t_scores.topk(beam, 1)  # [N * B, B]
        top = torch.where(is_finished[:, None], first, top)
        token = token.masked_fill(is_finished[:, None], eos)
        scores, index = (scores[:, None] + top).view(num, beam * beam).topk(beam, 1)  # [N, B]
        scores = scores.flatten()
        row = (index // beam + beam * torch.arange(num)[:, None]).flatten()
        token = token.view(num, beam * beam).gather(1, index).flatten()
        ys = torch.cat((ys[row], token[:, None]), 1)
        caches = [cache[row] for cache in caches]
        is_finished = token == eos
        if is_finished.all():
            break
    lengths = 1 + (ys[:, 1:] != eos).sum(1)  # start counts
    if length_penalty > 0:
        scores = scores / ((5 + lengths.double()) / 6) ** length_penalty
    found = []
    for n, own in enumerate(scores.view(num, beam)):
        best = own.topk(nbest)
        rows = [n * beam + int(k) for k in best.indices]
        tokens = [ys[r, 1 : lengths[r]].tolist() for r in rows]
        found.append(list(zip(tokens, best.values.tolist(), strict=True)))
    return found
