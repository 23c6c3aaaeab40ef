"""Beams of phrases: which continuations get a place, beside the reference in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.bench_automata import EOS, pool_of
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_places
from pybeam.backends.torch_automata import NEEDED, OTHER
from pybeam.backends.torch_places import PlacesInputs
from pybeam.inspect.work import Work


class AutomatonPlaces(Kernel):
    """Beams of which half of the edges of a row lead nearer to an end; each call has a copy of the rows."""

    op = "automaton_places"
    label = "{} beams of {}, V={}, {} edges"
    cases = Cases(
        cpu=cases(["float32"], [(64, 5, 8000, 4), (4, 20, 32000, 8)]),
        cuda=cases(["float32"], [(64, 5, 8000, 4), (64, 20, 32000, 8)]),
        tiny=[Case("float32", (2, 3, 50, 4))],
    )

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_beams: int,
        width: int,
        vocab_size: int,
        num_children: int,
    ) -> None:
        num_rows = num_beams * width
        pool = pool_of(device, vocab_size, 8, num_children)
        steps = torch.arange(8, dtype=torch.int32, device=device)
        pool.state[:8, NEEDED], pool.state[:, OTHER] = steps, 7
        row = torch.arange(num_rows, dtype=torch.int32, device=device)
        beam, entry = row // width, row % width
        ints, size = row.new_zeros, (num_beams, width)
        offset = torch.arange(0, num_rows + 1, width, dtype=torch.int32, device=device)
        inputs = PlacesInputs(
            state=(row % 7 + 1).view(size),
            child=torch.arange(num_children, dtype=torch.int32, device=device).repeat(num_beams, 1),
            row_slot=beam,
            node=entry,
            entry=entry,
            position=ints(num_rows),
            offset=offset,
            prefix_length=ints(num_beams),
            score=torch.randn(size, device=device),
            entries=offset,
            width=ints(num_beams) + width,
        )
        logits = torch.randn(num_rows, vocab_size, device=device)
        total = (logits + inputs.score.view(-1, 1)).index_fill_(
            1, torch.tensor([EOS], device=device), float("-inf")
        )
        best = total.view(num_beams, -1).topk(width).indices
        chosen = (best % vocab_size).int(), (best // vocab_size).int()
        self.copies = [(logits, pool, inputs, *chosen, (EOS,))]
        self.work = Work(3 * logits.nbytes, 0)

    def ours(self, backend: backends.Backend, logits: Tensor, *given: Any) -> Tensor:
        rows = logits.clone()
        divided = backend.automaton_places(rows, *given)
        return rows if divided is None else divided

    def in_torch(self, logits: Tensor, *given: Any) -> Tensor:
        # the reference looks at its arguments first, for which a GPU would wait
        return torch_places.divided(logits.clone(), *given)


bench_automaton_places = times(AutomatonPlaces)
