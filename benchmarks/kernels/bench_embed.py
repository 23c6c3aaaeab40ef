"""Tokens and positions looked up: in plain and packed tables on a CPU, with the first norm on a GPU."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_layers
from pybeam.backends.packing import pack
from pybeam.inspect.work import Work

POSITIONS, EPSILON = 512, 1e-5


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


class EmbedNorm(Kernel):
    """The sum of both rows, and its norm for the first layer."""

    op = "embed_norm"
    label = "{} of [{}, {}]"
    cases = Cases(
        cuda=cases(["bfloat16"], [(320, 42000, 1024), (5, 42000, 1024), (320, 8000, 256)]),
        tiny=[Case("float32", (3, 70, 24))],
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-2

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, vocab_size: int, size: int
    ) -> None:
        new = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        ints = partial(torch.randint, dtype=torch.int32, device=device)
        # two rows are read, two written
        self.work = Work(4 * num_rows * size * getattr(torch, dtype).itemsize, 0)
        self._scale, self._weight, self._shift = size**0.5, new(size), new(size)
        tables = new(vocab_size, size), new(POSITIONS, size)
        self.copies = [
            (ints(vocab_size, (num_rows,)), ints(POSITIONS // 2, (num_rows,)), *tables)
            for _ in range(10)
        ]

    def ours(self, backend: backends.Backend, *places: Tensor) -> tuple[Tensor, Tensor]:
        if backend.embed_norm is None:
            return self.in_torch(*places)
        norms = None, (self._weight, self._shift, EPSILON)
        return backend.embed_norm(*places, self._scale, -1, norms)

    def in_torch(
        self, token: Tensor, place: Tensor, table: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self._scale * F.embedding(token, table) + F.embedding(place, positions)
        return x, F.layer_norm(x, self._weight.shape, self._weight, self._shift, EPSILON)


bench_embed = times(Embed)
bench_embed_norm = times(EmbedNorm)
