"""`rotary`: queries and keys turned by the angles of their positions, beside the formula in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, times
from pybeam.backends import torch_layers
from pybeam.inspect.work import Work

POSITIONS = 2048


class Rotary(Kernel):
    op = "rotary"
    label = "[{}, {}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(320, 16, 64), (5, 16, 64)]),
        cuda=cases(["bfloat16"], [(320, 16, 128), (5, 16, 128)]),
        tiny=[Case("float32", (3, 2, 8))],
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-2
    others = (f"{FLASHINFER} rope",)

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, num_heads: int, size: int
    ) -> None:
        torch_dtype = getattr(torch, dtype)
        self.work = Work(2 * num_rows * num_heads * size * torch_dtype.itemsize, 0)
        angle = torch.arange(POSITIONS, device=device)[:, None] * torch.rand(
            size // 2, device=device
        )
        position = torch.arange(num_rows, dtype=torch.int32, device=device) % POSITIONS
        tables = position, angle.cos(), angle.sin()
        self.copies = [
            (torch.randn(num_rows, num_heads, size, device=device).to(torch_dtype), *tables)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch_layers.rotary(x, position, cos, sin)

    def in_other(self, name: str) -> Callable[..., object]:
        """It turns queries and keys in one call, and is given one head of keys."""
        from flashinfer.rope import apply_rope_with_cos_sin_cache

        (x, position, cos, sin), *_ = self.copies
        table, place = torch.cat((cos, sin), 1).contiguous(), position.long()
        key = x[:, :1].flatten(1).contiguous()
        return lambda x, *_: apply_rope_with_cos_sin_cache(
            place, x.flatten(1), key, x.shape[2], table
        )


bench_rotary = times(Rotary)
