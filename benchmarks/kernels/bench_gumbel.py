"""Noise of samples and of stochastic beams, and the log-probs put back behind the selection, beside torch."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.backends import Backend, defaults, torch_gumbel
from pybeam.inspect.work import Work
from pybeam.processors import sampling

WIDTH, DEPTH = 5, 16
TEMPERATURE = 0.8
# k of top-k, p of top-p, log(p) of min-p
CUTS = {"all tokens": (0, 1.0, -torch.inf), "top-k and top-p": (50, 0.9, -torch.inf)}

SAMPLE = sampling.sample()


class Drawing(NamedTuple):
    """The parts of `Rows` that a sampler asks for."""

    row_slot: Tensor
    num_generated: Tensor
    min_length: Tensor
    eos_ids: tuple[int, ...]


class Perturb(Kernel):
    """Beams of `WIDTH` rows behind `DEPTH` tokens."""

    op = "perturb"
    label = "[{}, {}]"
    # a CPU takes torch's
    cases = Cases(
        cuda=cases(["float32"], [(320, 42000), (5, 42000), (320, 8000)]),
        tiny=[Case("float32", (10, 50))],
    )
    tolerance = 1e-4

    def __init__(self, device: torch.device, dtype: str, num_rows: int, vocab_size: int) -> None:
        num_slots, num_nodes = num_rows // WIDTH, WIDTH * DEPTH
        ints = partial(torch.zeros, dtype=torch.int32, device=device)
        self.work = Work(2 * 4 * num_rows * vocab_size, 0)
        hashes = torch.randint(2**62, (num_slots, num_nodes), device=device)
        totals = -torch.rand(num_slots, num_nodes, device=device)
        self.changes = [hashes, totals]
        seed = torch.arange(num_slots, device=device)
        # each row's node is one of the last, and its parent one of the first
        entry = torch.arange(WIDTH, dtype=torch.int32, device=device).repeat(num_slots)
        trees = ints(num_slots, num_nodes), -torch.rand(num_slots, num_nodes, device=device)
        score = -1 - torch.rand(num_slots, WIDTH, device=device)
        slot = torch.arange(num_slots, dtype=torch.int32, device=device).repeat_interleave(WIDTH)
        rows = slot, entry, num_nodes - 1 - entry, 3 + entry, ints(num_rows) + DEPTH
        given = seed, hashes, totals, *trees, ints(num_slots), score, *rows
        self.copies = [
            (torch.randn(num_rows, vocab_size, device=device).log_softmax(1), *given)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, *arguments: Tensor) -> Tensor:
        return torch_gumbel.perturb(*arguments)


class Draw(Kernel):
    """Each row draws a token; logits are spread as far as those of a language model."""

    op = "draw"
    label = "[{}, {}], {}"
    # a CPU takes torch's
    cases = Cases(
        cuda=cases(
            ["float32"],
            [(num, size, cuts) for num, size in ((64, 42000), (1, 128256)) for cuts in CUTS],
        ),
        tiny=[Case("float32", (10, 50, cuts)) for cuts in CUTS],
    )

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, vocab_size: int, cuts: str
    ) -> None:
        ints = partial(torch.zeros, num_rows, dtype=torch.int32, device=device)
        floats = partial(torch.full, (num_rows,), device=device)
        self.work = Work(2 * 4 * num_rows * vocab_size, 0)
        k, p, log_ratio = CUTS[cuts]
        own = floats(TEMPERATURE), torch.arange(num_rows, device=device)
        given = (*own, (ints() + k, floats(p), floats(log_ratio)), ints(), ints())
        rows = torch.arange(num_rows, dtype=torch.int32, device=device), ints() + DEPTH, (2,)
        self.copies = [
            (
                (3 * torch.randn(num_rows, vocab_size, device=device)).log_softmax(1),
                *given,
                *rows,
            )
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def ours(self, backend: Backend, *arguments: Any) -> Tensor:
        return (self.in_torch if backend.draw is None else backend.draw.draw)(*arguments)

    def in_torch(
        self,
        log_probs: Tensor,
        temperature: Tensor,
        seed: Tensor,
        cuts: tuple[Tensor, ...],
        prefix_length: Tensor,
        min_length: Tensor,
        slot: Tensor,
        position: Tensor,
        eos_ids: tuple[int, ...],
    ) -> Tensor:
        rows: Any = Drawing(slot, position, min_length, eos_ids)
        # the processor may overwrite what it is given
        return SAMPLE(log_probs.clone(), rows, (temperature, seed, *cuts))


class RestoreLogProbs(Kernel):
    """Survivors of beams find the log-probs of their tokens."""

    op = "restore_log_probs"
    label = "{}x{}, V={}"
    cases = Cases(
        cuda=cases(["float32"], [(64, 5, 42000), (1, 5, 42000)]),
        tiny=[Case("float32", (2, 3, 50))],
    )

    def __init__(
        self, device: torch.device, dtype: str, num_beams: int, width: int, vocab_size: int
    ) -> None:
        arange = partial(torch.arange, dtype=torch.int32, device=device)
        num_rows, survivors = num_beams * width, (num_beams, 2 * width)
        chosen = (
            -torch.rand(survivors, device=device),
            arange(2 * width).remainder(width).repeat(num_beams, 1),
            torch.randint(vocab_size, survivors, dtype=torch.int32, device=device),
        )
        places = (
            torch.ones(num_beams, width, dtype=torch.bool, device=device),
            torch.zeros(num_beams, dtype=torch.int32, device=device),
            arange(num_beams),
            arange(0, num_rows + 1, width),
            torch.full((num_rows,), DEPTH, dtype=torch.int32, device=device),
        )
        # three numbers are read and one is written for each survivor, and one of a row's
        self.work = Work(5 * 4 * num_beams * 2 * width, 0)
        log_probs = -torch.rand(num_rows, vocab_size, device=device)
        self.copies = [(*chosen, log_probs, *places)] * 10

    def in_torch(self, *arguments: Tensor) -> Tensor:
        return defaults.restore_log_probs(*arguments)


bench_perturb = times(Perturb)
bench_draw = times(Draw)
bench_restore_log_probs = times(RestoreLogProbs)
