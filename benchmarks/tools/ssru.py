"""Teaches an SSRU decoder to stand where the example model's decoder has self-attention.

python -m benchmarks.tools.ssru [--output FILE] [--steps 400]

Marian cannot decode the example model: it starts from zeros at position 0, and its decoder leaves out the
norm before self-attention. With an SSRU (Kim et al. 2019) in place of self-attention it can. This learns the
SSRU's weights, and the biases and norms of the decoder, from the logits of the example model (Hinton et
al. 2015) on its training data. All else stays as it is:

    loss = mean over target tokens of sum_v p(v) (log p(v) - log q(v))

with p the example model's distribution and q that of the network with the SSRU. The numbers that have been
learned stand in `ssru.safetensors` beside this file, in float16.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from benchmarks import corpus, peers
from benchmarks.corpus import EOS

LEARNED = Path(__file__).with_name("ssru.safetensors")
PAD = 1
BATCH_TOKENS, WARM_UP, RATE = 1200, 40, 3e-3
MOST_TOKENS = 128
# what Marian adds to a variance
EPSILON = 1e-6
Pair = tuple[list[int], list[int]]


class Recurrence(nn.Module):
    """c_t = x_t + f_t (c_{t-1} - x_t), with x = W y and f = sigmoid(W_f y + b_f); gives relu(c) [B, T, d]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.candidate = nn.Linear(size, size, bias=False)
        self.forget = nn.Linear(size, size)
        # remembers for a few tokens
        nn.init.constant_(self.forget.bias, 1.0)

    def forward(self, y: Tensor) -> Tensor:
        candidate, forget = self.candidate(y).float(), self.forget(y).float().sigmoid()
        state, states = torch.zeros_like(candidate[:, 0]), []
        for x, f in zip(candidate.unbind(1), forget.unbind(1), strict=True):
            state = x + f * (state - x)
            states.append(state)
        return torch.stack(states, 1).relu()


class Decoder(nn.Module):
    """The example model's decoder with an SSRU, from Marian's start and positions."""

    def __init__(self, network) -> None:
        super().__init__()
        decoder = network.model.decoder
        self.table = network.model.shared.weight  # [V, d]
        self.scale = self.table.shape[1] ** 0.5
        self.positions = first_positions(decoder)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in decoder.layers)
        self.layer_norm = copy.deepcopy(decoder.layer_norm)
        for layer in self.layers:
            del layer.self_attn
            layer.rnn = Recurrence(self.table.shape[1])
        for name, parameter in self.named_parameters():
            parameter.requires_grad = ".rnn." in name or (
                parameter.ndim == 1 and name.startswith("layer")
            )
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = EPSILON

    def forward(self, memory: Tensor, seen: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] of targets [B, T]; of encoder states [B, S, d] some are `seen` [B, S]."""
        x = F.pad(self.table[target[:, :-1]] * self.scale, (0, 0, 1, 0))
        x = x + self.positions[: target.shape[1]]
        for layer in self.layers:
            x = x + layer.rnn(layer.self_attn_layer_norm(x))
            x = x + attended(layer.encoder_attn, layer.encoder_attn_layer_norm(x), memory, seen)
            x = x + layer.fc2(layer.fc1(layer.final_layer_norm(x)).relu())
        return self.layer_norm(x) @ self.table.T


def attended(attention, y: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
    """Cross-attention of queries [B, T, d]."""

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(2, (attention.num_heads, -1)).transpose(1, 2)

    q, k, v = attention.q_proj(y), attention.k_proj(memory), attention.v_proj(memory)
    out = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), seen[:, None, None])
    return attention.out_proj(out.transpose(1, 2).flatten(2))


def first_positions(stack) -> Tensor:
    """Positions [N, d] from 0 on; those of the example model begin with 2."""
    own = stack.embed_positions
    return own.get_embedding(*own.weights.shape)


def batches(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Pairs of about the same length, without end, in a random order."""
    while True:
        found: list[list[Pair]] = [[]]
        for pair in sorted(pairs, key=lambda pair: (longest(pair), random.random())):
            if longest(pair) * (len(found[-1]) + 1) > BATCH_TOKENS:
                found.append([])
            found[-1].append(pair)
        yield from random.sample(found, len(found))


def longest(pair: Pair) -> int:
    return max(map(len, pair))


def learn(network, pairs: list[Pair], steps: int) -> Decoder:
    """Return the decoder that has learned from so many batches."""
    student = Decoder(network)
    encoder = copy.deepcopy(network.model.encoder)
    # its rows 0 and 1 are left to padding
    encoder.embed_positions.weights = F.pad(first_positions(encoder)[:-2], (0, 0, 2, 0))
    learned = [one for one in student.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(learned, betas=(0.9, 0.98))
    bar = tqdm(range(1, steps + 1), mininterval=10)
    for step, batch in zip(bar, batches(pairs), strict=False):
        rate = min(step / WARM_UP, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        source, target = (
            pad_sequence([torch.tensor(pair[i]) for pair in batch], True, PAD) for i in (0, 1)
        )
        seen, kept = source != PAD, target != PAD
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                memory = encoder(source, seen.long()).last_hidden_state
                starts = F.pad(target[:, :-1], (1, 0), value=EOS)
                known = network(source, seen.long(), starts).logits[kept]
            logits = student(memory, seen, target)[kept]
        both = logits.float().log_softmax(1), known.float().log_softmax(1)
        loss = F.kl_div(*both, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        bar.set_postfix(nats=f"{loss.item():.3f}")
    return student


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=LEARNED)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--data", type=Path, help="default: what `make data` built")
    options = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    data = corpus.load(options.data, "train")
    targets = [[*line[: MOST_TOKENS - 1], EOS] for line in data.pieces.encode(data.references)]
    sources = [[*line[:-1][: MOST_TOKENS - 1], EOS] for line in data.sources]
    network = peers.transformers_model(corpus.MODEL)
    student = learn(network, list(zip(sources, targets, strict=True)), options.steps)
    save_file(
        {
            f"decoder.{name}": parameter.detach().half()
            for name, parameter in student.named_parameters()
            if parameter.requires_grad
        },
        options.output,
    )


if __name__ == "__main__":
    main()
