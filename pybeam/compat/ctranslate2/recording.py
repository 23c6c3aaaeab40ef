"""The numbers of a model in each step of each request, kept for those who ask."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage, stage_of
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm


class Record:
    """The rows of each request behind its prefix, in the order of its steps; a request has one row a step.

    Attributes:
        rows: [V] each, by the number of the request: logits, or the log-probability of the best token.
    """

    def __init__(self) -> None:
        self.rows: dict[int, list[Tensor]] = defaultdict(list)

    def of(
        self, algorithm: Algorithm, requests: Sequence[Request], stage: Stage
    ) -> tuple[Algorithm, list[Request]]:
        """Return a search and its requests that write here what selection sees."""
        chain = list(algorithm.processors)
        # those of logits come first
        place = sum(stage_of(one) == "logits" for one in chain) if stage == "logits" else len(chain)
        chain.insert(place, Recorder(self, stage))
        marked = [
            dataclasses.replace(
                request, processors=[*(request.processors or ()), Recorder(self, stage, i)]
            )
            for i, request in enumerate(requests)
        ]
        return dataclasses.replace(algorithm, processors=tuple(chain)), marked


@dataclass(frozen=True)
class Recorder(Processor):
    """Keeps logits, or of log-probabilities the best one, which is the one that greedy search takes."""

    record: Record
    stage: Stage = "logits"
    index: int = -1
    per_request: ClassVar = ("index",)
    can_capture: bool = False

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.index),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        [index] = data
        counts = zip(
            index.tolist(), rows.num_generated.tolist(), rows.row_slot.tolist(), strict=True
        )
        for row, (i, done, slot) in enumerate(counts):
            # slot 0 belongs to no request
            if slot and i >= 0 and done >= 0:
                kept = logits[row].clone() if self.stage == "logits" else logits[row].max()
                self.record.rows[i].append(kept)
        return logits
