"""Queries and keys with their norms and turns, in one kernel on a GPU, beside the formulas in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_heads, torch_layers
from pybeam.inspect.work import Work

POSITIONS, EPSILON = 2048, 1e-6


def angles_of(device: torch.device, num_rows: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of rows, and the cosines and sines of all positions."""
    angle = torch.arange(POSITIONS, device=device)[:, None] * torch.rand(size // 2, device=device)
    position = torch.arange(num_rows, dtype=torch.int32, device=device) % POSITIONS
    return position, angle.cos(), angle.sin()


class Rotary(Kernel):
    op = "rotary"
    label = "[{}, {}, {}]"
    # on a GPU `turn_heads` is in its place
    cases = Cases(
        cpu=cases(["float32"], [(320, 16, 64), (5, 16, 64)]), tiny=[Case("float32", (3, 2, 8))]
    )
    tolerance = 1e-5

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, num_heads: int, size: int
    ) -> None:
        torch_dtype = getattr(torch, dtype)
        self.work = Work(2 * num_rows * num_heads * size * torch_dtype.itemsize, 0)
        angles = angles_of(device, num_rows, size)
        self.copies = [
            (torch.randn(num_rows, num_heads, size, device=device).to(torch_dtype), *angles)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch_heads.rotary(x, position, cos, sin)


class TurnHeads(Kernel):
    """A Qwen3, whose heads have norms, and a Llama."""

    op = "turn_heads"
    label = "[{}, {} + {}, {}], {}"
    # a CPU has `rms_norm` and `rotary`
    cases = Cases(
        cuda=cases(
            ["bfloat16"],
            [
                (num_rows, 16, 8, 128, norms)
                for norms in ("norms", "no norms")
                for num_rows in (320, 5)
            ],
        ),
        tiny=[Case("float32", (3, 2, 1, 8, norms)) for norms in ("norms", "no norms")],
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-2

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        num_heads: int,
        num_key_heads: int,
        size: int,
        norms: str,
    ) -> None:
        torch_dtype, num = getattr(torch, dtype), num_heads + num_key_heads
        # heads of queries and of keys are read and written, those of values stay
        self.work = Work(2 * num_rows * num * size * torch_dtype.itemsize, 0)
        angles, has_norms = angles_of(device, num_rows, size), norms == "norms"
        # float32, as in a model in bfloat16
        weights = torch.rand(2, size, device=device) + 0.5
        own = [(weight, None, EPSILON) for weight in weights] if has_norms else None
        shape = num_rows, num + num_key_heads, size
        self.copies = [
            (torch.randn(shape, device=device).to(torch_dtype)[:, :num], num_heads, own, angles)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        """FlashInfer has the turns in one kernel, without the norms."""
        rope = (f"{FLASHINFER} rope",) if case.size[-1] == "no norms" else ()
        return (*super().peers(kind, case), *rope)

    def result(self, name: str) -> list[Tensor]:
        """Heads may be overwritten, so each backend has its own."""
        heads, *others = self.copies[0]
        return [*self.ours(backends.load(name), heads.clone(), *others)]

    def in_torch(self, *given: object) -> tuple[Tensor, Tensor]:
        return torch_layers.turn_heads(*given)

    def in_other(self, name: str) -> Callable[..., object]:
        """It takes positions in 64 bits, cosines and sines in one table, and gives new queries and keys."""
        from flashinfer.rope import apply_rope_with_cos_sin_cache

        (heads, num_heads, _, (position, cos, sin)), *_ = self.copies
        table, place, size = torch.cat((cos, sin), 1).contiguous(), position.long(), heads.shape[2]

        def turn(heads: Tensor, *_: object) -> tuple[Tensor, Tensor]:
            parts = (heads[:, :num_heads].flatten(1), heads[:, num_heads:].flatten(1))
            return apply_rope_with_cos_sin_cache(place, *parts, size, table)

        return turn


bench_rotary = times(Rotary)
bench_turn_heads = times(TurnHeads)
