"""`Workspace`: the memory that a stream of requests is decoded in, kept for the next stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.backends.arrays import NULL_SLOT
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.cuda_graphs import CudaCapture, StepGraphs, bucket
from pybeam.engine.source import Source
from pybeam.models.base import Model, Session
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState

# Room for so many tokens per hypothesis at first. Room doubles when it is used up. A small number costs a few
# copies, a large one costs memory that short outputs never use.
FIRST_LENGTH = 32
# The same where steps are captured: graphs refer to arrays, so all are lost when one grows.
FIRST_LENGTH_OF_GRAPHS = 128
# Slots beside those of the sources that move: of sources that are encoded ahead, and of those that a pending
# report still names.
SPARE_SLOTS = 32
# The share of a GPU's free memory that keys and values leave for activations and logits. A guess: both grow
# with the rows of a step, but not with the length of outputs.
RESERVE = 0.1
# After so many sources the memory is compared with what they needed. A large one now and then among small
# ones keeps its memory.
LOOK_AFTER = 256
# memory that is kept whatever it is for
KEPT_BYTES = 64 << 20


@dataclass
class Sizes:
    """Sizes that the arrays of a workspace follow from."""

    width: int = 0
    length: int = 0  # tokens of a hypothesis
    positions: int = 0  # of a source
    pages: int = 0

    def note(self, width: int = 0, length: int = 0, positions: int = 0, pages: int = 0) -> None:
        """Raise each size to the other of that name."""
        self.width = max(self.width, width)
        self.length = max(self.length, length)
        self.positions = max(self.positions, positions)
        self.pages = max(self.pages, pages)


class Workspace:
    """Session, beams, slots and pages. Arrays grow as they must, and all begin anew after a peak.

    The rule: if `LOOK_AFTER` sources in a row needed less than a quarter of what there is in one respect
    (width, tokens of a hypothesis, positions of a source, pages), and more than `KEPT_BYTES` are held, no
    source is admitted until nothing is in flight. Then everything is given back.

    The host never asks the device how much room is left. It counts what may have been taken since the last
    report.

    Attributes:
        model, algorithm: the model and the algorithm that decode.
        session, state, tree: see `Session`, `BeamState` and `TokenTree`.
        advances: whether the session moves state with rows.
        graphs: captured steps; None if steps are not captured.
        memory_limit: bytes for keys and values, None for no limit.
        is_too_large: whether `give_back` should be called when nothing is in flight.
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
        self._backend, self._uses_graphs = backend, uses_graphs
        if memory_limit is None and model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            memory_limit = int((1 - RESERVE) * free)
        self.memory_limit = memory_limit
        self._expected = 0  # sources, for which there is room from the first on
        self._most_sources = 0
        self._buffers: tuple[Tensor, ...] = ()
        self.give_back()

    def give_back(self) -> None:
        """Begin anew, with no memory. Nothing may be in flight."""
        poison.forget(self._buffers)
        model, algorithm, backend = self.model, self.algorithm, self._backend
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
        self.graphs = StepGraphs(CudaCapture(model.device)) if self._uses_graphs else None
        page_bytes = self.session.max_bytes(PAGE_CELLS, 0)
        if self.memory_limit is not None and page_bytes:
            self.tree.max_pages = self.memory_limit // page_bytes
        self.num_slots = NULL_SLOT + 1
        self._buffers = ()
        self._may_have_grown = True
        self._free_slots: list[int] = []
        self._quarantined_slots: list[int] = []  # empty, but a pending report may still name them
        self._reserved: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._session_room = (0, 0)  # slots and cells
        self._free_pages = 0  # at least so many
        # pages that may have been taken since the beginning, less those that have become free
        self.claimed_pages = 0
        self.is_too_large = False
        self._num_taken = 0  # sources since the last look
        self._held, self._needed = Sizes(), Sizes()  # since the beginning, and since the last look

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

    def expect(self, num_sources: int) -> None:
        """Note that so many sources may be live. Where steps are captured, there is room for all at once."""
        if self.graphs is not None:
            self._expected = max(self._expected, num_sources)

    def padded_sources(self, num_sources: int) -> int:
        """Return how many sources a captured step of so many has room for.

        Empty slots cost little, so it follows the most that there have been, and not those that there are.
        """
        self._most_sources = max(self._most_sources, num_sources)
        return bucket(self._most_sources)

    def take_slots(self, num: int) -> list[int]:
        """Take free slots."""
        missing = num - len(self._free_slots)
        if missing > 0:
            if self._expected:
                missing = max(missing, self._expected + SPARE_SLOTS - self.num_slots)
            self._free_slots += range(self.num_slots, self.num_slots + missing)
            self.num_slots += missing
        self._num_taken += num
        if self._num_taken >= LOOK_AFTER:
            self._look()
        return [self._free_slots.pop() for _ in range(num)]

    def _look(self) -> None:
        """See whether a peak has passed."""
        needs = vars(self._needed)
        self._held.note(**needs)
        pairs = zip(needs.values(), vars(self._held).values(), strict=True)
        is_past = any(4 * needed < held for needed, held in pairs)
        num_bytes = sum(buffer.nbytes for buffer in self.buffers())
        self.is_too_large = is_past and num_bytes > KEPT_BYTES
        self._num_taken, self._needed = 0, Sizes()

    def release_slots(self, slots: Iterable[int]) -> None:
        """Free these slots."""
        self._free_slots += slots

    def free_slot(self, slot: int) -> None:
        """Free the slot of a source that has no beam."""
        # it may be one for which there was no memory
        if slot < self._session_room[0]:
            self.session.release([slot])
        self.release_slots([slot])

    def quarantine(self, slots: Iterable[int]) -> None:
        """Free these slots when the reports that are pending have been read."""
        self._quarantined_slots += slots

    def end_quarantine(self) -> None:
        """Free the slots that no pending report names any more."""
        self.release_slots(self._quarantined_slots)
        self._quarantined_slots = []

    def reserve(self, length: int, live: Iterable[Source], newcomers: Sequence[Source]) -> None:
        """Make room for hypotheses of that many tokens of live sources, and for newcomers.

        Room for tokens grows ahead of need, but not beyond the longest hypothesis that a source may have. A
        slot has room for the nodes of each source, and not for the widest beam of the longest hypotheses.
        """
        widest = max([source.algorithm.max_rows for source in newcomers], default=0)
        farthest = max([source.source_length for source in newcomers], default=0)
        self._needed.note(widest, length, farthest)
        slots, max_width, max_length, max_nodes = self._reserved
        if slots >= self.num_slots and max_length >= length and not newcomers:
            return
        # newcomers may bring longer prefixes and sources than there is room for
        self._may_have_grown = True
        growing = newcomers
        if max_length < length:
            # longer hypotheses have more nodes
            growing = [*live, *newcomers]
            longest = max(source.max_tokens for source in growing)
            first = FIRST_LENGTH_OF_GRAPHS if self._expected else FIRST_LENGTH
            ahead = max(first, 2 * max_length)
            # rather a little more now than all again for the last tokens
            ahead = longest if 4 * ahead >= 3 * longest else ahead
            max_length = max(length, ahead)
        reserved = (
            max(slots, self.num_slots),
            max(max_width, widest),
            max_length,
            max([max_nodes, *(source.max_nodes(max_length) for source in growing)]),
        )
        if reserved == self._reserved:
            return
        self.state.reserve(*reserved)
        self._reserve_expected_pages(max_length)
        self._reserve_session()
        # only now: what could not be allocated is asked for again
        self._reserved = reserved

    def choose_reads(self, sources: Iterable[Source]) -> None:
        """Decide how many tokens of each source's prefix are read at once, before its first step."""
        reach = self.state.prefix_reach
        can_read = self.session.can_read and self.state.reads_ahead and reach is not None
        for source in sources:
            num = source.num_given - (reach or 0)
            # one token is as soon read in a step
            source.num_read = num if can_read and num > 1 else 0

    def open(self, sources: Sequence[Source]) -> list[int]:
        """Open a beam for each source, and read its prefix. Returns the most rows that each begins with."""
        state, start_id = self.state, self.model.start_id
        reading = [source for source in sources if source.num_read]
        self.claim_pages(len(sources), sum(-(-s.num_read // PAGE_CELLS) for s in reading))
        num_rows = state.open(sources, start_id)
        if not reading:
            return num_rows
        try:
            for rows in state.read_ahead(reading, start_id):
                self.session.read(rows)
        except Exception:
            state.close([source.slot for source in sources])
            raise
        return num_rows

    def _reserve_expected_pages(self, length: int) -> None:
        """Make room for one hypothesis of that length of every source that is expected.

        Rows share most of their tokens. Two steps may be claimed that no report has confirmed.
        """
        tree = self.tree
        pages_of_source = -(-length // PAGE_CELLS) + 3 * tree.pages_per_step
        total = self._expected * pages_of_source
        if tree.max_pages is not None:
            total = min(total, tree.max_pages)
        missing = total - tree.num_total_pages
        if missing > 0:
            self._add_free(tree.reserve_pages(missing, 0))

    def claim_pages(self, num_sources: int, num_more: int = 0) -> None:
        """Make room for the nodes, keys and values that so many beams append in one step.

        `num_more` is a number of pages beside those.
        """
        tree = self.tree
        num_new = num_sources * tree.pages_per_step + num_more
        num_added = tree.reserve_pages(num_new, self._free_pages)
        self._add_free(num_added - num_new)
        self._needed.note(pages=tree.num_total_pages - self._free_pages)
        if num_added or self._session_room[1] < tree.num_cells:
            self._may_have_grown = True
            self._reserve_session()

    def _add_free(self, num_pages: int) -> None:
        """Count pages that become free, or that may be taken. A report that is under way knows neither."""
        self._free_pages += num_pages
        self.claimed_pages -= num_pages

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
        self._add_free(num_pages)

    def buffers(self) -> tuple[Tensor, ...]:
        """All tensors that live between steps: the same tuple until one of them has been replaced."""
        if self._may_have_grown:
            self._may_have_grown = False
            now = (*self.state.buffers(), *self.session.buffers())
            if len(now) != len(self._buffers) or not all(map(is_, now, self._buffers)):
                self._buffers = now
        return self._buffers
