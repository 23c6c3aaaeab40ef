"""Prompts whose keys and values lie scattered in a pool, and their attention row by row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends import load

SCALE = 0.3


def ints(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


class Prompt(NamedTuple):
    """Queries of all positions of a prompt, and a pool in which its keys and values lie scattered."""

    query: Tensor  # [P, H, D]
    key: Tensor  # [cells, G, D]
    value: Tensor
    cell: Tensor  # [P]


def prompt_of(length: int, heads: int = 4, key_heads: int = 2, size: int = 16) -> Prompt:
    generator = torch.Generator().manual_seed(length)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    pool = random(length + 9, 2, key_heads, size)
    cell = torch.randperm(length + 9, generator=generator)[:length]
    return Prompt(random(length, heads, size), pool[:, 0], pool[:, 1], cell.int())


def attended(
    backend: str,
    prompts: list[tuple[Prompt, slice]],
    window: int = 0,
    soft_cap: float = 0.0,
    padding: int = 0,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention of these rows of prompts that share a pool."""
    longest = max(len(prompt.cell) for prompt, _ in prompts)
    lines = [
        torch.nn.functional.pad(prompt.cell, (0, longest - len(prompt.cell)))
        for prompt, _ in prompts
    ]
    positions = [torch.arange(len(prompt.cell))[part] for prompt, part in prompts]
    query = torch.cat([prompt.query[part] for prompt, part in prompts])
    query = torch.cat((query, query.new_ones(padding, *query.shape[1:])))
    offset = torch.tensor([0, *map(len, positions)]).cumsum(0)
    first = prompts[0][0]
    return load(backend).prompt_attention(
        query,
        first.key,
        first.value,
        offset.int(),
        ints(range(len(prompts))).flip(0),
        torch.stack(lines).flip(0),
        ints([len(prompt.cell) for prompt, _ in prompts]).flip(0),
        ints(torch.cat((*positions, torch.zeros(padding, dtype=torch.int64)))),
        SCALE,
        window,
        soft_cap,
        bias,
    )


def exact(
    prompt: Prompt, window: int = 0, soft_cap: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Row by row, in float64."""
    group = prompt.query.shape[1] // prompt.key.shape[1]
    rows = []
    for p in range(len(prompt.query)):
        seen = prompt.cell[max(0, p + 1 - window) if window else 0 : p + 1].long()
        key, value = (t[seen].double().repeat_interleave(group, 1) for t in prompt[1:3])
        score = (prompt.query[p].double() * key).sum(2) * SCALE  # [n, H]
        score = soft_cap * (score / soft_cap).tanh() if soft_cap else score
        if bias is not None:
            back = torch.arange(len(seen)).flip(0).clamp(max=bias.shape[1] - 1)
            score = score + bias[:, back].t().double()
        rows.append((score.softmax(0)[..., None] * value).sum(0))
    return torch.stack(rows)
