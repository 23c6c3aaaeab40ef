"""`Workspace`: the memory that a stream of requests is decoded in, kept for the next stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import NULL_SLOT
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.cuda_graphs import CudaCapture, StepGraphs
from pybeam.engine.source import Source
from pybeam.models.base import Model, Session
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState

# Room for so many tokens per hypothesis at first. Room doubles when it is used up. A small number costs a few
# copies, a large one costs memory that short outputs never use.
FIRST_LENGTH = 32
# The share of a GPU's free memory that keys and values leave for activations and logits. A guess: both grow
# with the rows of a step, but not with the length of outputs.
RESERVE = 0.1


class Workspace:
    """Session, beams, slots and pages. Arrays grow as they must and never shrink.

    The host never asks the device how much room is left. It counts what may have been taken since the last
    report.

    Attributes:
        model, algorithm: the model and the algorithm that decode.
        session, state, tree: see `Session`, `BeamState` and `TokenTree`.
        advances: whether the session moves state with rows.
        graphs: captured steps; None if steps are not captured.
        memory_limit: bytes for keys and values, None for no limit.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        backend: Backend,
        *,
        uses_graphs: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        self.model, self.algorithm = model, algorithm
        self.session = model.session(backend)
        # whether `Session.advance` has something to do
        self.advances = type(self.session).advance is not Session.advance
        pad_id = model.start_id if model.pad_id is None else model.pad_id
        self.state = BeamState(
            algorithm,
            model.eos_ids,
            backend,
            model.device,
            vocab_size=model.vocab_size,
            pad_id=pad_id,
        )
        self.tree = self.state.tree
        self.graphs = StepGraphs(CudaCapture()) if uses_graphs else None
        if memory_limit is None and model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            memory_limit = int((1 - RESERVE) * free)
        self.memory_limit = memory_limit
        page_bytes = self.session.max_bytes(PAGE_CELLS, 0)
        if memory_limit is not None and page_bytes:
            self.tree.max_pages = memory_limit // page_bytes
        self.num_slots = NULL_SLOT + 1
        self._free_slots: list[int] = []
        self._reserved: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._session_room = (0, 0)  # slots and cells
        self._free_pages = 0  # at least so many
        self.claimed_pages = 0  # pages that may have been taken since the beginning

    def max_bytes(self, source: Source) -> int:
        """Return the bytes that keys and values of a source may need. Raises ValueError if they never fit."""
        width, length = source.algorithm.max_width, source.source_length
        num_pages = -(-width * source.max_tokens // PAGE_CELLS) + 1
        needed = self.session.max_bytes(num_pages * PAGE_CELLS, length)
        limit = self.memory_limit
        if limit is not None and needed > limit:
            raise ValueError(
                f"this request may need {needed / 1e6:.1f} MB for keys and values "
                f"({width} rows of {source.max_tokens} tokens, {length} source positions), but "
                f"`memory_limit` is {limit / 1e6:.1f} MB; lower `width` or `max_length`, or raise the limit"
            )
        return needed

    def free_bytes(self, taken_bytes: int) -> float:
        """Return the bytes that are left if sources need `taken_bytes`."""
        return math.inf if self.memory_limit is None else self.memory_limit - taken_bytes

    def take_slots(self, num: int) -> list[int]:
        """Take free slots."""
        missing = num - len(self._free_slots)
        if missing > 0:
            self._free_slots += range(self.num_slots, self.num_slots + missing)
            self.num_slots += missing
        return [self._free_slots.pop() for _ in range(num)]

    def release_slots(self, slots: Iterable[int]) -> None:
        """Free these slots."""
        self._free_slots += slots

    def give_back(self, slot: int) -> None:
        """Free the slot of a source that has no beam."""
        # it may be one for which there was no memory
        if slot < self._session_room[0]:
            self.session.release([slot])
        self.release_slots([slot])

    def reserve(self, length: int, live: Iterable[Source], newcomers: Sequence[Source]) -> None:
        """Make room for hypotheses of that many tokens of live sources, and for newcomers.

        Room for tokens grows ahead of need, but not beyond the longest hypothesis that a source may have. A
        slot has room for the nodes of each source, and not for the widest beam of the longest hypotheses.
        """
        slots, max_width, max_length, max_nodes = self._reserved
        if slots >= self.num_slots and max_length >= length and not newcomers:
            return
        sources = [*live, *newcomers]
        if max_length < length:
            longest = max(source.max_tokens for source in sources)
            max_length = max(length, min(max(FIRST_LENGTH, 2 * max_length), longest))
        reserved = (
            max(slots, self.num_slots),
            max([max_width, *(source.algorithm.max_rows for source in newcomers)]),
            max_length,
            max([max_nodes, *(source.max_nodes(max_length) for source in sources)]),
        )
        if reserved == self._reserved:
            return
        self.state.reserve(*reserved)
        self._reserve_session()
        # only now: what could not be allocated is asked for again
        self._reserved = reserved

    def claim_pages(self, num_sources: int) -> None:
        """Make room for the nodes, keys and values that so many beams append in one step."""
        tree = self.tree
        num_new = num_sources * tree.pages_per_step
        num_added = tree.reserve_pages(num_new, self._free_pages)
        self._free_pages += num_added - num_new
        self.claimed_pages += num_new
        if self._session_room[1] < tree.num_cells:
            self._reserve_session()

    def _reserve_session(self) -> None:
        num_slots, num_cells = self.num_slots, self.tree.num_cells
        self.session.reserve(num_slots, self.state.width_capacity, num_cells)
        self._session_room = num_slots, num_cells

    def read_report(self, num_free_pages: int, claimed_pages: int) -> None:
        """Store how many pages were free on the device when `claimed_pages` had been claimed."""
        self._free_pages = num_free_pages - (self.claimed_pages - claimed_pages)

    def close(self, slots: list[int], num_pages: int) -> None:
        """Empty these slots, which hold so many pages."""
        self.session.release(slots)
        self.state.close(slots)
        self._free_pages += num_pages

    def buffers(self) -> tuple[Tensor, ...]:
        """All tensors that live between steps."""
        return *self.state.buffers(), *self.session.buffers()
