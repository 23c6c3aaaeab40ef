"""Gates of feed-forward layers, convolutions and LSTMs, beside the torch code that computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends.torch_layers import Activation, lstm_cell
from pybeam.inspect.work import Work

SIZES = [(320, 1024), (5, 1024)]
TINY = [Case("float32", (3, 24))]


class Gated(Kernel):
    """SiLU of one half, times the other one."""

    op = "gated"
    label = "[{}, 2 x {}]"
    cases = Cases(
        cpu=cases(["float32"], SIZES),
        cuda=cases(["bfloat16"], [(320, 4096), (5, 4096)]),
        tiny=TINY,
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-2
    others: ClassVar[tuple[str, ...]] = (f"{FLASHINFER} silu_and_mul",)
    halves = 2

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        torch_dtype = getattr(torch, dtype)
        self.work = Work((self.halves + 1) * num_rows * size * torch_dtype.itemsize, 0)
        self.copies = [
            (torch.randn(num_rows, self.halves * size, device=device).to(torch_dtype),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def ours(self, backend: backends.Backend, x: Tensor) -> Tensor:
        return backend.gated(x, int(Activation.SILU))

    def in_torch(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, 1)
        return F.silu(gate) * value

    def in_other(self, name: str) -> Callable[..., object]:
        from flashinfer.activation import silu_and_mul

        return silu_and_mul


class Glu(Gated):
    op = "glu"
    others = ()
    # on a GPU torch's is fast
    cases = Cases(cpu=cases(["float32"], SIZES), tiny=TINY)

    def ours(self, backend: backends.Backend, x: Tensor) -> Tensor:
        return backend.glu(x)

    def in_torch(self, x: Tensor) -> Tensor:
        return F.glu(x, 1)


class LstmCell(Gated):
    op = "lstm_cell"
    others = ()
    label = "[{}, 4 x {}]"
    cases = Cases(cpu=cases(["float32"], SIZES), tiny=TINY)
    halves = 4

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        super().__init__(device, dtype, num_rows, size)
        self._cell = torch.randn(num_rows, size, device=device)

    def ours(self, backend: backends.Backend, gates: Tensor) -> tuple[Tensor, Tensor]:
        return backend.lstm_cell(gates, self._cell)

    def in_torch(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_cell(gates, self._cell)


bench_gated = times(Gated)
bench_glu = times(Glu)
bench_lstm_cell = times(LstmCell)
