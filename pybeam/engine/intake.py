"""`Intake`: sources leave the queue, are encoded, and get a beam."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from pybeam.engine.admission import ENCODE_AHEAD, Admission
from pybeam.engine.arrivals import Arrivals
from pybeam.engine.failures import isolate
from pybeam.engine.live_sources import LiveSources
from pybeam.engine.schedule import LoadLevel, Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import PhaseClock, Stats
from pybeam.engine.workspace import Workspace
from pybeam.request import Partial, Result
from pybeam.state.new_beam import NO_SLOT

Answers = Generator[list[Result | Partial]]


class Intake:
    """The way of sources from the queue of a stream to its loop. Sources that fail on it become results."""

    def __init__(
        self,
        admission: Admission,
        arrivals: Arrivals,
        workspace: Workspace,
        schedule: Schedule,
        live: LiveSources,
        stats: Stats,
        clock: PhaseClock,
    ) -> None:
        self._admission, self._arrivals, self._work = admission, arrivals, workspace
        self._schedule, self._live, self._stats, self._clock = schedule, live, stats, clock

    @property
    def has_room(self) -> bool:
        """Whether the source that is next, or one that comes now, may be admitted before another leaves."""
        load = self._live.load(self._stats.steps)
        if self._is_emptied or not self._schedule.refills(load):
            return False
        return self._fits(self._admission.next(), load, self._live.max_bytes)

    @property
    def _is_emptied(self) -> bool:
        """Whether nobody is admitted until memory has been given back."""
        return self._work.is_too_large and not self._admission.has_encoded

    def _fits(self, source: Source | None, load: LoadLevel, taken_bytes: int) -> bool:
        """Whether there is room for one more source; None: for some source."""
        if source is None:
            return self._schedule.may_have_room(load)
        if load.sources and source.max_bytes > self._work.room.free_bytes(taken_bytes):
            return False
        return self._schedule.has_room(load, source.source_length, source.algorithm.max_rows)

    def admit(self) -> Answers:
        """Refill: take the sources from the queue that the schedule admits."""
        live, admission = self._live, self._admission
        load, taken_bytes = live.load(self._stats.steps), live.max_bytes
        if not self._schedule.refills(load):
            return
        admitted: list[Source] = []
        while not self._is_emptied:
            source = admission.next()
            if source is None:
                if self._arrivals.keeps_order and not self._fits(None, load, taken_bytes):
                    break
                for result in admission.read(may_wait=not load.sources):
                    yield [self._stats.count(result)]
                source = admission.next()
            if source is None or not self._fits(source, load, taken_bytes):
                break
            admitted.append(admission.take())
            load = load.with_one_more(source.source_length, source.algorithm.first_rows)
            taken_bytes += source.max_bytes
        if admitted:
            yield from self._encode(admitted, self._work.room.free_bytes(taken_bytes))
            yield from self._open([source for source in admitted if source.slot != NO_SLOT])

    def _encode(self, admitted: list[Source], free_bytes: float) -> Answers:
        """Encode these sources, and some that come next, so that encoder batches are not tiny."""
        missing = [source for source in admitted if source.slot == NO_SLOT]
        if not missing:
            return
        ahead = self._admission.take_ahead(ENCODE_AHEAD - len(missing), free_bytes)
        work, sources = self._work, missing + ahead
        for source, slot in zip(sources, work.take_slots(len(sources)), strict=True):
            source.slot = slot
        self._live.reserve(work.slots.num)

        def encode(some: list[Source]) -> None:
            slots = [source.slot for source in some]
            self._reserve(some)
            contents = [source.content for source in some]
            try:
                work.session.encode(contents, [source.number for source in some], slots)
            except Exception:
                # a half encoded source would keep its cells when it is tried again
                work.session.release(slots)
                raise

        indices = [source.index for source in sources]
        self._arrivals.enter("encode", indices)
        self._clock("encode")
        errors = isolate(encode, sources)
        self._clock(None)
        self._arrivals.enter("wait", indices)
        yield from self.give_up(sources, errors)
        self._admission.put_encoded(source for source in ahead if source.slot != NO_SLOT)

    def _open(self, sources: list[Source]) -> Answers:
        """Open a beam for each of these sources."""
        opened: list[Source] = []
        num_rows: list[int] = []

        def open_beams(some: list[Source]) -> None:
            self._work.choose_reads(some)
            self._reserve(some)
            num_rows.extend(self._work.open(some))
            opened.extend(some)

        self._clock("encode")
        errors = isolate(open_beams, sources)
        self._clock(None)
        yield from self.give_up(sources, errors)
        if opened:
            self._live.add(opened, num_rows, self._stats.steps)
            self._arrivals.enter("decode", [source.index for source in opened])
            self._stats.refills += 1

    def give_up(self, sources: list[Source], errors: Mapping[int, Exception]) -> Answers:
        """Make results of sources that leave before they begin; `errors` are by place in `sources`."""
        for i, error in errors.items():
            source = sources[i]
            if source.slot != NO_SLOT:
                self._work.free_slot(source.slot)
                source.slot = NO_SLOT
            yield [self._stats.count(source.failed(error))]

    def _reserve(self, newcomers: Sequence[Source]) -> None:
        """Make room for the widest beam and the longest hypothesis of the next step."""
        length = self._live.max_tokens(self._stats.steps, 2, newcomers)
        self._work.room.reserve(length, self._live, newcomers)
