"""`select` over the shapes of a decoder's steps, beside what people write in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.gpu.expected import of_bytes
from benchmarks.gpu.journal import Journal, same
from benchmarks.gpu.timing import Timer, num_copies
from pybeam import backends
from pybeam.contracts import Finishing, SelectOptions
from pybeam.engine.cuda_graphs import bucket

FLASHINFER = "flashinfer top_k"


@dataclass(frozen=True)
class Case:
    """`num_beams` beams of `width` entries; `max_candidates` None: no limit.

    `num_live`: so many entries have a row and others are held or absent, as late in a step of
    `variable_beam`; there is room for as many rows as its bucket has. None: all have rows.
    """

    num_beams: int
    width: int
    vocab_size: int
    dtype: torch.dtype
    max_candidates: int | None = 5
    num_live: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows that are read."""
        return self.num_live or self.num_beams * self.width

    @property
    def num_padded_rows(self) -> int:
        return bucket(self.num_live) if self.num_live else self.num_rows

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.vocab_size * self.dtype.itemsize

    @property
    def row(self) -> dict:
        live = f", {self.num_live} live" if self.num_live else ""
        return {
            "op": "select",
            "shape": f"{self.num_beams}x{self.width}, V={self.vocab_size}, M={self.max_candidates}{live}",
            "dtype": str(self.dtype).removeprefix("torch."),
        }


BEAMS = ((64, 5), (10, 5), (1, 5), (200, 5), (1, 1))
VOCABULARIES = (58101, 42000, 8000, 128256, 256000)


def first_cases(tiny: bool) -> list[Case]:
    """Those with a target, and late steps, in which most entries are held or absent."""
    if tiny:
        return [
            Case(2, 3, 50, torch.float32),
            Case(1, 3, 50, torch.bfloat16, None),
            Case(3, 4, 50, torch.float32, num_live=7),
        ]
    bf16, f32 = torch.bfloat16, torch.float32
    late = [Case(64, 50, 42000, bf16, num_live=430), Case(64, 5, 42000, bf16, num_live=150)]
    early = [Case(64, 5, 42000, bf16), Case(1, 5, 42000, bf16), Case(64, 5, 8000, bf16)]
    return [*early, *late, Case(64, 5, 58101, bf16), Case(64, 5, 58101, f32)]


def cases(tiny: bool) -> list[Case]:
    """Table B of the cost model: rows x vocabulary, then wide beams; the table of choice needs them all."""
    if tiny:
        return []
    dtypes = (torch.bfloat16, torch.float32)
    narrow = [Case(n, k, v, dtype) for n, k in BEAMS for v in VOCABULARIES for dtype in dtypes]
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
    is_ended: Tensor | None

    @staticmethod
    def random(case: Case, device: torch.device) -> Inputs:
        shape = (case.num_padded_rows, case.vocab_size)
        copies = range(num_copies(case.num_bytes))
        logits = [2 * torch.randn(shape, device=device).to(case.dtype) for _ in copies]
        room = case.num_beams * case.width
        width = torch.full((case.num_beams,), case.width, dtype=torch.int32, device=device)
        offset = torch.arange(0, room + 1, case.width, dtype=torch.int32)
        is_ended = None
        if case.num_live:
            counts, is_ended = _held(case)
            offset[1:] = counts.cumsum(0)
            is_ended = is_ended.to(device)
        limit = case.max_candidates
        return Inputs(
            case,
            logits,
            -torch.rand(room, device=device),
            offset.to(device),
            width,
            None if limit is None else torch.full_like(width, limit),
            is_ended,
        )

    def calls(self, function: Callable[[Tensor], object]) -> list[Callable[[], object]]:
        return [partial(function, logits) for logits in self.logits]

    def ours(self, backend: str, logits: Tensor) -> object:
        options = SelectOptions(
            capacity=2 * self.case.width,
            eos_ids=(2,),
            finishing=int(Finishing.REFILL if self.is_ended is None else Finishing.HELD),
            max_candidates=self.max_candidates,
            is_ended=self.is_ended,
        )
        arrays = self.score, self.offset, self.width
        return backends.load(backend).select(logits, *arrays, options)

    def check(self, backend: str) -> None:
        """Compare the first beam with the reference; ties are exact, sums have another order."""
        ours = self.ours(backend, self.logits[0])
        num = int(self.offset[1])
        is_ended = None if self.is_ended is None else self.is_ended[:num].cpu()
        num_rows = num if is_ended is None else int((~is_ended).sum())
        first = Inputs(
            self.case,
            [],
            self.score[:num].cpu(),
            self.offset[:2].cpu(),
            self.width[:1].cpu(),
            None if self.max_candidates is None else self.max_candidates[:1].cpu(),
            is_ended,
        )
        theirs = first.ours("reference", self.logits[0][:num_rows].cpu())
        for name in ("token", "parent", "count", "num_finished"):
            same(getattr(ours, name)[:1], getattr(theirs, name))
        same(ours.score[:1], theirs.score, 1e-5)

    def in_torch(self, logits: Tensor) -> object:
        """Two times the width, as systems do that wait for hypotheses to end."""
        log_prob = torch.log_softmax(logits.float(), -1) + self.score[:, None]
        beams = log_prob.view(self.case.num_beams, -1)
        return beams.topk(min(2 * self.case.width, beams.shape[1]))


def _held(case: Case) -> tuple[Tensor, Tensor]:
    """Entries per beam, and which of them are held: one in eight of a beam's, and never its first."""
    live = torch.full((case.num_beams,), case.num_live // case.num_beams)
    live[: case.num_live % case.num_beams] += 1
    counts = (live + live // 7).clamp(max=case.width)
    is_ended = torch.ones(case.num_beams * case.width, dtype=torch.bool)
    begin = 0
    for num, num_live in zip(counts.tolist(), live.tolist(), strict=True):
        is_ended[begin : begin + num_live] = False
        begin += num
    return counts, is_ended


def measure_first(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    _measure(timer, journal, names, first_cases(tiny))


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    done = set(first_cases(tiny))
    _measure(timer, journal, names, [case for case in cases(tiny) if case not in done])


def _measure(timer: Timer, journal: Journal, names: list[str], wanted: list[Case]) -> None:
    for case in wanted:
        if journal.is_over:
            return
        inputs = Inputs.random(case, timer.device)
        for name in names:
            calls = inputs.calls(partial(inputs.ours, name))
            time_it, check = partial(timer.graph_of, calls), partial(inputs.check, name)
            # a launch, and three times blocks that wait for others
            forecast = of_bytes(case.num_bytes, kernels=4)
            row = {**case.row, "backend": name}
            journal.measure(row, time_it, case.num_bytes, check=check, expected=forecast)
        if inputs.is_ended is None:
            _measure_peers(timer, journal, inputs)


def _measure_peers(timer: Timer, journal: Journal, inputs: Inputs) -> None:
    case, calls = inputs.case, inputs.calls(inputs.in_torch)
    row = case.row
    journal.measure({**row, "backend": "torch"}, partial(timer.eager_us, calls), case.num_bytes)
    graphed = partial(timer.graphed_us, calls)
    journal.measure({**row, "backend": "torch, graph"}, graphed, case.num_bytes)
    top_k = _flashinfer_top_k(timer.device)
    if isinstance(top_k, str):
        # once says it
        if not any(known.get("backend") == FLASHINFER for known in journal.own_rows):
            journal.add({**row, "backend": FLASHINFER, "skipped": top_k})
            journal.say(f"{FLASHINFER} is left out: {top_k}")
        return
    calls = inputs.calls(lambda logits: top_k(logits, case.max_candidates or case.width))
    graphed = partial(timer.graphed_us, calls)
    journal.measure({**row, "backend": FLASHINFER}, graphed, case.num_bytes)


@cache
def _flashinfer_top_k(device: torch.device) -> Callable | str:
    """The function, or why there is none. It compiles when it is first called."""
    if device.type != "cuda":
        return "it needs a GPU"
    try:
        import flashinfer

        top_k = flashinfer.top_k
        top_k(torch.rand(2, 1000, device=device), 5)
    # a compiler or a package that is missing shows here
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return top_k


def measure_compiled(timer: Timer, journal: Journal, tiny: bool) -> None:
    """`torch.compile` takes seconds per shape, so only the shapes with a target."""
    if tiny:
        return
    for case in (
        Case(64, 5, 42000, torch.bfloat16),
        Case(64, 5, 58101, torch.bfloat16),
        Case(1, 5, 42000, torch.bfloat16),
    ):
        if journal.is_over:
            return
        inputs = Inputs.random(case, timer.device)
        compiled = torch.compile(inputs.in_torch, dynamic=False)
        graphed = partial(timer.graphed_us, inputs.calls(compiled))
        journal.measure({**case.row, "backend": "torch.compile"}, graphed, case.num_bytes)
