"""`Workspace`: the memory that a stream of requests is decoded in, kept for the next stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.room import Room, Sizes
from pybeam.engine.slots import Slots
from pybeam.engine.source import Source
from pybeam.models.base import Model, Session
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState

if TYPE_CHECKING:
    from pybeam.engine.cuda_graphs import StepGraphs

# The share of a GPU's free memory that keys and values leave for activations and logits. A guess: both grow
# with the rows of a step, but not with the length of outputs.
RESERVE = 0.1
# After so many sources the memory is compared with what they needed. A large one now and then among small
# ones keeps its memory.
LOOK_AFTER = 256
# memory that is kept whatever it is for
KEPT_BYTES = 64 << 20


class Workspace:
    """Session, beams, slots and room. Arrays grow as they must, and all begin anew after a peak.

    The rule: if `LOOK_AFTER` sources in a row needed less than a quarter of what there is in one respect
    (width, tokens of a hypothesis, positions of a source, pages), and more than `KEPT_BYTES` are held, no
    source is admitted until nothing is in flight. Then everything is given back.

    Args:
        memory_limit: bytes for keys and values, None for no limit.

    Attributes:
        model, algorithm: the model and the algorithm that decode.
        session, state, tree, slots, room: see their classes.
        advances: whether the session moves state with rows.
        graphs: captured steps; None if steps are not captured.
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
        self._memory_limit = memory_limit
        self._most_expected = self._most_sources = 0
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
        given = algorithm, model.eos_ids, backend, model.device
        if algorithm.draft is None:
            self.state = BeamState(*given)
        else:
            from pybeam.state.draft_state import DraftState

            self.state = DraftState(*given, vocab_size=model.vocab_size, pad_id=pad_id)
        self.tree, self.slots = self.state.tree, Slots()
        self.room = Room(self.state, self.session, self.slots, self._memory_limit)
        self.room.num_expected = self._most_expected
        self.graphs: StepGraphs | None = None
        if self._uses_graphs:
            from pybeam.engine.cuda_graphs import CudaCapture, StepGraphs, capture_between_steps

            self.graphs = StepGraphs(CudaCapture(model.device), device=model.device)
            capture_between_steps(self)
        self._buffers = ()
        self.is_too_large = False
        self._num_taken = 0  # sources since the last look
        self._held = Sizes()  # needed since the beginning

    def expect(self, num_sources: int) -> None:
        """Note that so many sources may be live. Where steps are captured, there is room for all at once."""
        if self.graphs is not None:
            self._most_expected = max(self._most_expected, num_sources)
            self.room.num_expected = self._most_expected

    def padded_sources(self, num_sources: int) -> int:
        """Return how many sources a captured step of so many has room for.

        Empty slots cost little, so it follows the most that there have been, and not those that there are.
        """
        from pybeam.engine.buckets import bucket

        self._most_sources = max(self._most_sources, num_sources)
        return bucket(self._most_sources)

    def take_slots(self, num: int) -> list[int]:
        """Take free slots."""
        self._num_taken += num
        taken = self.slots.take(num, self._most_expected)
        if self._num_taken >= LOOK_AFTER:
            self._look()
        return taken

    def _look(self) -> None:
        """See whether a peak has passed."""
        needs = vars(self.room.needed)
        self._held.note(**needs)
        pairs = zip(needs.values(), vars(self._held).values(), strict=True)
        is_past = any(4 * needed < held for needed, held in pairs)
        num_bytes = sum(buffer.nbytes for buffer in self.buffers())
        self.is_too_large = is_past and num_bytes > KEPT_BYTES
        self._num_taken, self.room.needed = 0, Sizes()

    def free_slot(self, slot: int) -> None:
        """Free the slot of a source that has no beam."""
        if self.room.has_session_room(slot):
            self.session.release([slot])
        self.slots.release([slot])

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
        self.room.claim(len(sources), sum(-(-s.num_read // PAGE_CELLS) for s in reading))
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

    def close(self, slots: list[int], num_pages: int) -> None:
        """Empty these slots, which hold so many pages."""
        self.session.release(slots)
        self.state.close(slots)
        self.room.add_free(num_pages)

    def buffers(self) -> tuple[Tensor, ...]:
        """All tensors that live between steps: the same tuple until one of them has been replaced."""
        if self.room.may_have_grown:
            self.room.may_have_grown = False
            now = (*self.state.buffers(), *self.session.buffers())
            if len(now) != len(self._buffers) or not all(map(is_, now, self._buffers)):
                self._buffers = now
        return self._buffers
