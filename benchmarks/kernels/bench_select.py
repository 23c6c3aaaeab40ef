"""`select` over the shapes of a decoder's steps, beside what people write in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor

from benchmarks.gpu import expected
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, same, times
from pybeam import backends
from pybeam.contracts import Finishing, SelectOptions, Survivors
from pybeam.engine.buckets import bucket
from pybeam.inspect.work import Work

# beams, width, vocabulary, candidates of a row (None: no limit), entries that have a row (None: all)
EARLY = [(64, 5, 42000, 5, None), (1, 5, 42000, 5, None), (64, 5, 8000, 5, None)]
# as late in a step of `variable_beam`: others are held or absent
LATE_IN_STEP = [(64, 50, 42000, 5, 430), (64, 5, 42000, 5, 150)]
MAIN = (64, 5, 58101, 5, None)
NARROW = [
    (beams, width, vocabulary, 5, None)
    for beams, width in ((64, 5), (10, 5), (1, 5), (200, 5), (1, 1))
    for vocabulary in (58101, 42000, 8000, 128256, 256000)
]
WIDE = [(16, 50, vocabulary, m, None) for vocabulary in (8000, 58101) for m in (5, None)]
ON_CUDA = [
    *cases(["bfloat16"], [*EARLY, *LATE_IN_STEP]),
    *cases(["bfloat16", "float32"], [MAIN]),
]
BOTH = ("float32", "bfloat16")
LATE = [case for case in cases(BOTH, NARROW + WIDE) if case not in ON_CUDA]
# what TensorRT-LLM 1.4 does, whose package has no function for it
IN_TENSORRT_LLM = f"{FLASHINFER}, as in TensorRT-LLM"
# rows of no more are left to torch there
RADIX_COLUMNS = 10_000
COMPILED = ((64, 5, 42000, 5, None), MAIN, (1, 5, 42000, 5, None))


class Select(Kernel):
    op = "select"
    label = "{}x{}, V={}, M={}, {} live"
    cases = Cases(
        cpu=cases(
            BOTH,
            [(beams, 5, v, 5, None) for v in (8000, 58101, 256000) for beams in (1, 10)]
            + [(1, 50, 8000, None, None), (16, 50, 8000, None, None)]
            # wide beams, as over catalogues
            + [
                (1, 512, 1000, None, None),
                (1, 4096, 1000, None, None),
                (1, 512, 32000, None, None),
            ],
        ),
        cuda=ON_CUDA,
        tiny=[
            Case("float32", (2, 3, 50, 5, None)),
            Case("bfloat16", (1, 3, 50, None, None)),
            Case("float32", (3, 4, 50, 5, 7)),
        ],
    )
    late = LATE
    on_cuda = ("native", "triton")

    @classmethod
    def names(cls, size: tuple) -> tuple[str, str]:
        *_, live = size
        return cls.op, cls.label.format(*size) if live else cls.label[:-9].format(*size)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        *_, num_live = case.size
        if num_live is not None:
            return ()
        if kind == "cpu":
            return ("torch",)
        return (
            "torch",
            "torch, graph",
            *cls.compiled(case),
            f"{FLASHINFER} top_k",
            IN_TENSORRT_LLM,
        )

    @classmethod
    def compiled(cls, case: Case) -> tuple[str, ...]:
        is_compiled = case.size in COMPILED and case.dtype == "bfloat16"
        return ("torch.compile",) if is_compiled else ()

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_beams: int,
        width: int,
        vocab_size: int,
        max_candidates: int | None,
        num_live: int | None,
    ) -> None:
        self._num_beams, self._width, self._limit = num_beams, width, max_candidates
        num_rows, room = num_live or num_beams * width, num_beams * width
        torch_dtype = getattr(torch, dtype)
        self.work = Work(num_rows * vocab_size * torch_dtype.itemsize, 0)
        # there is room for as many rows as the bucket of a captured step has
        shape = (bucket(num_rows) if num_live else num_rows, vocab_size)
        self.copies = [
            (2 * torch.randn(shape, device=device).to(torch_dtype),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]
        offset = torch.arange(0, room + 1, width, dtype=torch.int32)
        self._is_ended: Tensor | None = None
        if num_live:
            counts, is_ended = _held(num_beams, width, num_live)
            offset[1:] = counts.cumsum(0)
            self._is_ended = is_ended.to(device)
        score = -torch.rand(room, device=device)
        self._beams = score, offset.to(device), *self._rules(num_beams, device, self._is_ended)

    def _rules(
        self, num_beams: int, device: torch.device, is_ended: Tensor | None
    ) -> tuple[Tensor, SelectOptions]:
        """The widths of so many beams, and the other arguments of `select`."""
        width = torch.full((num_beams,), self._width, dtype=torch.int32, device=device)
        options = SelectOptions(
            capacity=2 * self._width,
            eos_ids=(2,),
            finishing=int(Finishing.REFILL if is_ended is None else Finishing.HELD),
            max_candidates=None if self._limit is None else torch.full_like(width, self._limit),
            is_ended=is_ended,
        )
        return width, options

    def ours(self, backend: backends.Backend, logits: Tensor) -> Survivors:
        return backend.select(logits, *self._beams)

    @cached_property
    def _first_beam(self) -> Survivors:
        """The reference's results for the first beam: it computes row by row."""
        score, offset, *_ = self._beams
        num, [logits] = int(offset[1]), self.copies[0]
        is_ended = None if self._is_ended is None else self._is_ended[:num].cpu()
        num_rows = num if is_ended is None else int((~is_ended).sum())
        return backends.load("reference").select(
            logits[:num_rows].cpu(),
            score[:num].cpu(),
            offset[:2].cpu(),
            *self._rules(1, torch.device("cpu"), is_ended),
        )

    def check(self, name: str, dtype: str) -> None:
        """Ties are exact, and sums have another order."""
        ours, theirs = self.ours(backends.load(name), *self.copies[0]), self._first_beam
        for field in ("token", "parent", "count", "num_finished"):
            same(getattr(ours, field)[:1], getattr(theirs, field))
        same(ours.score[:1], theirs.score, 1e-5)

    def in_torch(self, logits: Tensor) -> object:
        """Two times the width, as systems do that wait for hypotheses to end."""
        log_prob = torch.log_softmax(logits.float(), -1) + self._beams[0][:, None]
        beams = log_prob.view(self._num_beams, -1)
        return beams.topk(min(2 * self._width, beams.shape[1]))

    def expected(self, dtype: str) -> expected.Expected:
        return expected.of_work(self.work, dtype, "select")

    def in_other(self, name: str) -> Callable[..., object]:
        import flashinfer

        if name == IN_TENSORRT_LLM:
            return partial(self._in_tensorrt_llm, flashinfer.top_k)
        return lambda logits: flashinfer.top_k(logits, self._limit or self._width)

    def _in_tensorrt_llm(self, top_k: Callable[..., tuple], logits: Tensor) -> tuple[Tensor, ...]:
        """Scores, parents and tokens [A, K] as its `beam_candidate_topk` finds them: by row, then by beam."""
        total = torch.log_softmax(logits.float(), -1) + self._beams[0][:, None]
        by_row = top_k if total.shape[1] > RADIX_COLUMNS else torch.topk
        score, token = by_row(total, self._width)
        best = score.view(self._num_beams, -1).topk(self._width)
        token = token.view(self._num_beams, -1).gather(1, best.indices)
        return best.values, best.indices // self._width, token


def _held(num_beams: int, width: int, num_live: int) -> tuple[Tensor, Tensor]:
    """Entries per beam, and which of them are held: one in eight of a beam's, and never its first."""
    live = torch.full((num_beams,), num_live // num_beams)
    live[: num_live % num_beams] += 1
    counts = (live + live // 7).clamp(max=width)
    is_ended = torch.ones(num_beams * width, dtype=torch.bool)
    begin = 0
    for num, own in zip(counts.tolist(), live.tolist(), strict=True):
        is_ended[begin : begin + own] = False
        begin += num
    return counts, is_ended


bench_select = times(Select)
