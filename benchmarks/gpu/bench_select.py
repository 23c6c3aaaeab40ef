"""`select` over the shapes of a decoder's steps, beside what people write in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.timing import Timer, num_copies
from pybeam import backends
from pybeam.contracts import Finishing, SelectOptions


@dataclass(frozen=True)
class Case:
    """`num_beams` beams of `width` rows; `max_candidates` None: no limit."""

    num_beams: int
    width: int
    vocab_size: int
    dtype: torch.dtype
    max_candidates: int | None = 5

    @property
    def num_rows(self) -> int:
        return self.num_beams * self.width

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.vocab_size * self.dtype.itemsize

    @property
    def row(self) -> dict:
        return {
            "op": "select",
            "shape": f"{self.num_beams}x{self.width}, V={self.vocab_size}, M={self.max_candidates}",
            "dtype": str(self.dtype).removeprefix("torch."),
        }


def cases(tiny: bool) -> list[Case]:
    """Table B of the cost model: rows x vocabulary, then wide beams."""
    if tiny:
        return [Case(2, 3, 50, torch.float32), Case(1, 3, 50, torch.bfloat16, None)]
    dtypes = (torch.bfloat16, torch.float32)
    beams = ((64, 5), (10, 5), (1, 5), (200, 5), (1, 1))  # those with a target first
    sizes = (58101, 42000, 8000, 128256, 256000)
    narrow = [Case(n, k, v, dtype) for n, k in beams for v in sizes for dtype in dtypes]
    wide = [Case(16, 50, v, dtype, m) for v in (8000, 58101) for dtype in dtypes for m in (5, None)]
    return narrow + wide


@dataclass
class Inputs:
    """One set of arguments for every rotated copy of the logits."""

    case: Case
    logits: list[Tensor]
    score: Tensor
    offset: Tensor
    width: Tensor
    max_candidates: Tensor | None

    @staticmethod
    def random(case: Case, device: torch.device) -> Inputs:
        shape = (case.num_rows, case.vocab_size)
        copies = range(num_copies(case.num_bytes))
        logits = [2 * torch.randn(shape, device=device).to(case.dtype) for _ in copies]
        width = torch.full((case.num_beams,), case.width, dtype=torch.int32, device=device)
        offset = torch.arange(0, case.num_rows + 1, case.width, dtype=torch.int32, device=device)
        limit = case.max_candidates
        return Inputs(
            case,
            logits,
            -torch.rand(case.num_rows, device=device),
            offset,
            width,
            None if limit is None else torch.full_like(width, limit),
        )

    def calls(self, function: Callable[[Tensor], object]) -> list[Callable[[], object]]:
        return [partial(function, logits) for logits in self.logits]

    def ours(self, backend: str, logits: Tensor) -> object:
        options = SelectOptions(
            capacity=2 * self.case.width,
            eos_ids=(2,),
            finishing=int(Finishing.REFILL),
            max_candidates=self.max_candidates,
        )
        arrays = self.score, self.offset, self.width
        return backends.load(backend).select(logits, *arrays, options)

    def in_torch(self, logits: Tensor) -> object:
        """Two times the width, as systems do that wait for hypotheses to end."""
        log_prob = torch.log_softmax(logits.float(), -1) + self.score[:, None]
        beams = log_prob.view(self.case.num_beams, -1)
        return beams.topk(min(2 * self.case.width, beams.shape[1]))


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    for case in cases(tiny):
        if journal.is_over:
            return
        inputs = Inputs.random(case, timer.device)
        for name in names:
            calls = inputs.calls(partial(inputs.ours, name))
            time_it = partial(timer.graphed_us, calls)
            journal.measure({**case.row, "backend": name}, time_it, case.num_bytes)
        _measure_peers(timer, journal, inputs)


def _measure_peers(timer: Timer, journal: Journal, inputs: Inputs) -> None:
    case, calls = inputs.case, inputs.calls(inputs.in_torch)
    row = case.row
    journal.measure({**row, "backend": "torch"}, partial(timer.eager_us, calls), case.num_bytes)
    graphed = partial(timer.graphed_us, calls)
    journal.measure({**row, "backend": "torch, graph"}, graphed, case.num_bytes)
    top_k = _flashinfer_top_k()
    if top_k is not None:
        calls = inputs.calls(lambda logits: top_k(logits, case.max_candidates or case.width))
        graphed = partial(timer.graphed_us, calls)
        journal.measure({**row, "backend": "flashinfer top_k"}, graphed, case.num_bytes)


def _flashinfer_top_k() -> Callable | None:
    try:
        import flashinfer
    except ImportError:
        return None
    return getattr(flashinfer, "top_k", None)


def measure_compiled(timer: Timer, journal: Journal, tiny: bool) -> None:
    """`torch.compile` takes seconds per shape, so only the shapes with a target."""
    if tiny:
        return
    for case in (
        Case(64, 5, 58101, torch.bfloat16),
        Case(64, 5, 58101, torch.float32),
        Case(10, 5, 58101, torch.bfloat16),
    ):
        inputs = Inputs.random(case, timer.device)
        compiled = torch.compile(inputs.in_torch, dynamic=False)
        graphed = partial(timer.graphed_us, inputs.calls(compiled))
        journal.measure({**case.row, "backend": "torch.compile"}, graphed, case.num_bytes)
