"""Causal attention of the rows of a prompt, beside SDPA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.inspect.work import Work

SIZES = [(1, 128, 16, 128), (4, 512, 16, 64)]


class PromptAttention(Kernel):
    """Prompts of one length; each of a query's heads has half as many heads of keys."""

    op = "prompt_attention"
    label = "{} x {}, {} heads of {}"
    cases = Cases(
        cpu=cases(["float32"], SIZES),
        cuda=cases(["bfloat16"], SIZES),
        tiny=[Case("float32", (2, 9, 4, 16))],
    )
    tolerance = 2e-5
    tolerance_of_halves = 2e-2

    def __init__(
        self, device: torch.device, dtype: str, num: int, length: int, num_heads: int, size: int
    ) -> None:
        num_rows, key_heads = num * length, num_heads // 2
        on_device = {"device": device, "dtype": getattr(torch, dtype)}
        query = torch.randn(num_rows, num_heads, size, **on_device)
        key, value = torch.randn(2, num_rows, key_heads, size, **on_device)
        cell = torch.arange(num_rows, dtype=torch.int32).view(num, length)
        slot = torch.arange(num, dtype=torch.int32)
        offset = torch.arange(0, num_rows + 1, length, dtype=torch.int32)
        num_cells = torch.full_like(slot, length)
        position = torch.arange(length, dtype=torch.int32).repeat(num)
        places = [one.to(device) for one in (offset, slot, cell, num_cells, position)]
        self.copies = [(query, key, value, *places, size**-0.5, 0, 0.0)]
        self._num = num
        num_pairs = num * length * (length + 1) // 2
        self.work = Work(
            query.itemsize * num_rows * size * 2 * (num_heads + key_heads),
            4 * num_pairs * num_heads * size,
        )

    def in_torch(self, query: Tensor, key: Tensor, value: Tensor, *places) -> Tensor:
        heads = [one.unflatten(0, (self._num, -1)).transpose(1, 2) for one in (query, key, value)]
        return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)


bench_prompt_attention = times(PromptAttention)
