"""What a stream of requests is decoded in, and what the next stream finds warm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.cuda_graphs import CudaCapture, StepGraphs
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState
from pybeam.state.draft_state import DraftState
from pybeam.state.report import Report

# tokens per hypothesis that there is room for at first
FIRST_LENGTH = 32
# of what is free on a GPU, keys and values get all but this share: activations and logits need the rest
RESERVE = 0.1


class Workspace:
    """Session, beams, slots and pages. Arrays grow as they must and never shrink.

    The host never asks the device how much room is left: it counts what may have been taken since
    the device last said so.

    Attributes:
        session, state: see `Session` and `BeamState`.
        graphs: captured steps, None where steps are not captured.
        memory_limit: bytes for keys and values, None for no limit.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        backend,
        *,
        uses_graphs: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        self.session = model.session(backend)
        parts = algorithm, model.eos_ids, backend, model.device
        if algorithm.draft is None:
            self.state = BeamState(*parts)
        else:
            pad_id = model.start_id if model.pad_id is None else model.pad_id
            self.state = DraftState(*parts, vocab_size=model.vocab_size, pad_id=pad_id)
        self.graphs = StepGraphs(CudaCapture()) if uses_graphs else None
        if memory_limit is None and model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            memory_limit = int((1 - RESERVE) * free)
        self.memory_limit = memory_limit
        page_bytes = self.session.most_bytes(PAGE_CELLS, 0)
        if memory_limit is not None and page_bytes:
            self.state.tree.max_pages = memory_limit // page_bytes
        self.taken_bytes = 0  # what live sources may need
        self.num_slots = NULL_SLOT + 1
        self._free_slots: list[int] = []
        self._reserved: tuple[int, int, int] = (0, 0, 0)
        self._free_pages = 0  # at least so many
        self.claimed_pages = 0  # may have been taken, ever

    def most_bytes(self, width: int, most_tokens: int, source_length: int) -> int:
        """Bytes of keys and values that a source may need."""
        num_pages = -(-width * most_tokens // PAGE_CELLS) + 1
        return self.session.most_bytes(num_pages * PAGE_CELLS, source_length)

    @property
    def free_bytes(self) -> float:
        """What no live source may need."""
        return math.inf if self.memory_limit is None else self.memory_limit - self.taken_bytes

    def take_slots(self, num: int) -> list[int]:
        """Slots that nobody has."""
        missing = num - len(self._free_slots)
        if missing > 0:
            self._free_slots += range(self.num_slots, self.num_slots + missing)
            self.num_slots += missing
        return [self._free_slots.pop() for _ in range(num)]

    def give_back(self, slots: Iterable[int]) -> None:
        """These slots are free again."""
        self._free_slots += slots

    def reserve(self, width: int, length: int) -> None:
        """Room for every slot, beams of that width and hypotheses of that many tokens."""
        slots, most_width, most_length = self._reserved
        while most_length < length:
            most_length = max(FIRST_LENGTH, 2 * most_length)
        reserved = max(slots, self.num_slots), max(most_width, width), most_length
        if reserved != self._reserved:
            self._reserved = reserved
            self.state.reserve(*reserved)
        self._reserve_session()

    def claim_pages(self, num_sources: int) -> None:
        """Room for what that many beams append in one step, in the pool of keys and values too."""
        tree = self.state.tree
        num_new = num_sources * tree.pages_per_step
        self._free_pages += tree.reserve_pages(num_new, self._free_pages) - num_new
        self.claimed_pages += num_new
        self._reserve_session()

    def _reserve_session(self) -> None:
        state = self.state
        self.session.reserve(self.num_slots, state.width_capacity, state.tree.num_cells)

    def hear(self, report: Report, claimed_pages: int) -> None:
        """The device has said how many pages are free, when `claimed_pages` had been claimed."""
        self._free_pages = report.num_free_pages - (self.claimed_pages - claimed_pages)

    def close(self, slots: list[int], num_pages: int) -> None:
        """Empty these slots, which held so many pages."""
        self.session.release(slots)
        self.state.close(slots)
        self._free_pages += num_pages

    def buffers(self) -> tuple[Tensor, ...]:
        """All tensors that live between steps."""
        return *self.state.buffers(), *self.session.buffers()
