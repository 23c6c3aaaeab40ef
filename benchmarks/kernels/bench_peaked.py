"""An output layer with the selection behind it: from peaks that the product leaves, or from all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu import expected
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, same, times
from pybeam import backends
from pybeam.contracts import Finishing, SelectOptions, Survivors
from pybeam.inspect.work import Work

# torch's product, and `select` among all logits
BY_PARTS = "product, select"


class OutputAndSelect(Kernel):
    """What PYBEAM_PEAKED_OUTPUT=1 makes of the last two kernels of the model and the selection."""

    op = "output and select"
    label = "{}x{}, V={}, {} inputs"
    cases = Cases(
        cuda=cases(
            ["bfloat16"],
            [
                *((beams, 5, 8000, 256) for beams in (1, 12, 64)),
                *((beams, 5, 42000, 1024) for beams in (1, 12, 64)),
                *((64, 50, *sizes) for sizes in ((8000, 256), (42000, 1024))),
                (1, 5, 256000, 2048),
            ],
        ),
        tiny=[Case("float16", (2, 3, 150, 24))],
    )

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        return (*super().peers(kind, case), BY_PARTS)

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_beams: int,
        width: int,
        vocab_size: int,
        depth: int,
    ) -> None:
        num_rows, torch_dtype = num_beams * width, getattr(torch, dtype)
        self._num_beams, self._width = num_beams, width
        # logits are written, and need not be read
        numbers = vocab_size * depth + num_rows * (depth + vocab_size)
        self.work = Work(numbers * torch_dtype.itemsize, 2 * num_rows * vocab_size * depth)
        self._x = torch.randn(num_rows, depth, device=device).to(torch_dtype)
        self.copies = [
            (2 * depth**-0.5 * torch.randn(vocab_size, depth, device=device).to(torch_dtype),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]
        offset = torch.arange(0, num_rows + 1, width, dtype=torch.int32, device=device)
        # as `select` takes them
        self._beams = (
            -torch.rand(num_rows, device=device),
            offset,
            torch.full_like(offset[1:], width),
        )
        self._options = SelectOptions(2 * width, (2,), int(Finishing.REFILL))

    def _multiplied(self, backend: backends.Backend, weight: Tensor) -> tuple[Tensor, ...]:
        """Logits, and what our product leaves beside them."""
        if backend.few_rows is None:
            return (F.linear(self._x, weight),)
        from pybeam.triton_kernels.peaked_product import peaked_product

        return peaked_product(self._x, weight, None)

    def ours(self, backend: backends.Backend, weight: Tensor) -> Survivors:
        peaked = self._multiplied(backend, weight)
        # elsewhere there is no such operator
        if len(peaked) == 1 or not weight.is_cuda:
            return backend.select(peaked[0], *self._beams, self._options)
        from pybeam.models.transformer.cuda_operators import operator, selected

        return Survivors(
            *operator("select_peaked")(*peaked, *selected(*self._beams, self._options))
        )

    def check(self, name: str, dtype: str) -> None:
        """Survivors are the reference's, among the logits of our product, which are near those of torch."""
        backend, [weight] = backends.load(name), self.copies[0]
        logits, *_ = self._multiplied(backend, weight)
        same(logits, F.linear(self._x, weight), 1e-2)
        given = [part.cpu() for part in (logits, *self._beams)]
        ours = self.ours(backend, weight)
        theirs = backends.load("reference").select(*given, self._options)
        for field in ("token", "parent", "count", "num_finished"):
            same(getattr(ours, field), getattr(theirs, field))
        same(ours.score, theirs.score, 1e-5)

    def peer(self, name: str) -> Callable[..., Any]:
        return self._by_parts if name == BY_PARTS else super().peer(name)

    def _by_parts(self, weight: Tensor) -> Survivors:
        select = backends.load("native").select
        if weight.is_cuda:
            from pybeam.backends.gpu_select import select
        return select(F.linear(self._x, weight), *self._beams, self._options)

    def in_torch(self, weight: Tensor) -> object:
        """Two times the width, as systems do that wait for hypotheses to end."""
        log_prob = torch.log_softmax(F.linear(self._x, weight).float(), -1)
        beams = (log_prob + self._beams[0][:, None]).view(self._num_beams, -1)
        return beams.topk(2 * self._width)

    def expected(self, dtype: str) -> expected.Expected:
        own = expected.of_work(self.work, dtype, "product")
        rest = expected.of_work(Work(0, 0), dtype, "select")
        return expected.Expected(own.limit, own.forecast + rest.forecast)


bench_output_and_select = times(OutputAndSelect)
