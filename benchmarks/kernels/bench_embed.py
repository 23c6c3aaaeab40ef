"""`embed` on a CPU: tokens and positions looked up, in plain tables and in packed ones."""

from __future__ import annotations

import torch

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.backends import torch_layers
from pybeam.backends.packing import pack

POSITIONS = 512


class Embed(Kernel):
    """A row of a table and one of positions, added; `packed` is the table of an output layer."""

    op = "embed"
    label = "{} of [{}, {}], {}"
    cases = Cases(
        cpu=cases(
            ["float32", "bfloat16"],
            [(320, 8000, 256, "plain"), (320, 8000, 256, "packed"), (5, 32000, 512, "packed")],
        ),
        tiny=[Case("float32", (3, 70, 24, "packed"))],
    )
    tolerance = 1e-6
    tolerance_of_halves = 1e-6

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, vocab_size: int, size: int, form: str
    ) -> None:
        torch_dtype = getattr(torch, dtype)
        weight = torch.randn(vocab_size, size).to(torch_dtype)
        token = torch.randint(vocab_size, (num_rows,), dtype=torch.int32)
        position = torch.randint(POSITIONS, (num_rows,), dtype=torch.int32)
        table = pack(weight) if form == "packed" else weight
        positions = torch.randn(POSITIONS, size)
        self.copies = [(token, position, table, None, vocab_size, positions, 16.0)]
        # a row of each table is read, and the sum written
        self.work = Work(num_rows * size * (torch_dtype.itemsize + 4 + 4), 0)

    def in_torch(self, *arguments) -> torch.Tensor:
        return torch_layers.embed(*arguments)


bench_embed = times(Embed)
