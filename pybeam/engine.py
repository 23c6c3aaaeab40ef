"""The one loop. It never names an algorithm; an algorithm never calls the model and never loops."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pybeam.beam_state import BeamState
from pybeam.beams import STOP_REASONS
from pybeam.models.base import Model
from pybeam.request import Hypothesis, Request, Result
from pybeam.schedule import Schedule
from pybeam.search.algorithms import Algorithm

# sources encoded together when the schedule admits one at a time
ENCODE_AHEAD = 16
# tokens per hypothesis that there is room for at first
FIRST_LENGTH = 32


@dataclass
class Stats:
    """What one decode or stream call did; the columns of the papers' tables.

    `expansions` counts rows sent through the model; held hypotheses are not.
    """

    sources: int = 0
    steps: int = 0
    expansions: int = 0
    refills: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pages: int = 0  # of the key and value pool, which never shrinks

    @property
    def expansions_per_step(self) -> float:
        return self.expansions / self.steps if self.steps else 0.0


PHASES = ("encode", "plan", "model", "select", "commit", "close")


@dataclass(eq=False)
class Source:
    """A request being decoded."""

    index: int
    request: Request
    content: Any  # as the model's `check` returned it
    length: int
    limits: Algorithm
    prefix: list[int]
    slot: int = -1
    opened: int = -1  # step at which it was admitted


class Engine:
    """Decodes one stream of requests. Made anew for every `Decoder.decode` or `Decoder.stream` call."""

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        schedule: Schedule,
        backend,
        stats: Stats,
        *,
        wants_log_probs: bool = False,
        check_every_step: bool = False,
    ) -> None:
        self.model, self.algorithm, self.schedule = model, algorithm, schedule
        self.stats, self.wants_log_probs = stats, wants_log_probs
        self._check_every_step = check_every_step
        self._session = model.session(backend)
        self._state = BeamState(algorithm, model.eos_id, backend, model.device)
        self._queue: deque[Source] = deque()  # sorted within a window
        self._encoded: deque[Source] = deque()  # encoded, waiting for a place
        self._live: dict[int, Source] = {}  # by slot, in order of admission
        self._live_slot = torch.zeros(0, dtype=torch.int32)
        self._live_tokens = self._live_rows = 0
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._reserved: tuple[int, int, int] = (0, 0, 0)

    @torch.inference_mode()
    def run(self, requests: Iterable[Any]) -> Iterator[Result]:
        """Results as they are known, in no particular order."""
        arriving = enumerate(requests)
        while True:
            yield from self._admit(arriving)
            if not self._live:
                return
            with self._timed("plan"):
                slot = self._plan()
                rows, moving = self._state.read(slot)
            with self._timed("model"):
                logits = self._session.step(rows)
                for process in self.algorithm.processors:
                    logits = process(logits, rows)
            with self._timed("select"):
                survivors = self._state.select(moving, logits)
            with self._timed("commit"):
                source, target = self._state.commit(slot, survivors)
                self._session.advance(source, target)
            self.stats.steps += 1
            self.stats.expansions += rows.token.numel()
            if self._check_every_step:
                self._state.check()
            yield from self._close()

    def _admit(self, arriving: Iterator[tuple[int, Any]]) -> Iterator[Result]:
        """Refill: let the schedule take sources from the queue."""
        if not self.schedule.refills(len(self._live), self._live_tokens, self._live_rows):
            return
        admitted: list[Source] = []
        while True:
            if not self._encoded and not self._queue:
                yield from self._read(arriving)
            source = next(iter(self._encoded or self._queue), None)
            if source is None or not self.schedule.has_room(
                len(self._live) + len(admitted),
                self._live_tokens,
                self._live_rows + len(admitted),
                source.length,
                source.limits.width,
            ):
                break
            if self._encoded:
                self._encoded.popleft()
            else:
                self._queue.popleft()
            admitted.append(source)
            self._live_tokens += source.length
        if not admitted:
            return
        self._encode([source for source in admitted if source.slot < 0])
        self._open(admitted)

    def _read(self, arriving: Iterator[tuple[int, Any]]) -> Iterator[Result]:
        """Take the next window of requests, longest sources first; bad requests become results."""
        window: list[Source] = []
        for index, request in arriving:
            result = self._receive(index, request, window)
            if result is not None:
                yield self._counted(result)
            if len(window) >= self.schedule.queue_window:
                break
        self._queue.extend(sorted(window, key=lambda source: -source.length))

    def _receive(self, index: int, request: Any, window: list[Source]) -> Result | None:
        """Check one request. It joins the window, or a result says at once what became of it."""
        if not isinstance(request, Request):
            request = Request(request)
        try:
            content = self.model.check(request.source)
            prefix = self._check_prefix(request.prefix)
            limits = self.algorithm.overridden(request, self.model.max_positions)
            self.schedule.check_width(limits.width)
        except (TypeError, ValueError) as error:
            return Result(index, request.id, [], "error", error=error)
        length = self.model.source_length(content)
        if length == 0:
            empty = Hypothesis(prefix, 0.0, 0.0, True, [] if self.wants_log_probs else None)
            return Result(index, request.id, [empty], "empty_source")
        window.append(Source(index, request, content, length, limits, prefix))
        return None

    def _check_prefix(self, prefix) -> list[int]:
        if prefix is None:
            return []
        tokens = prefix.tolist() if isinstance(prefix, Tensor) else list(prefix)
        for token in tokens:
            if not isinstance(token, int) or not 0 <= token < self.model.vocab_size:
                raise ValueError(
                    f"`prefix` must hold token ids from 0 to {self.model.vocab_size - 1}, but holds {token!r}"
                )
            if token == self.model.eos_id:
                raise ValueError(
                    f"`prefix` must not hold EOS ({token}): nothing could follow it; leave it out"
                )
        return tokens

    def _encode(self, sources: list[Source]) -> None:
        """Encode these and, where few are, some that come next, so that encoder batches are not tiny."""
        if not sources:
            return
        while len(sources) < ENCODE_AHEAD and self._queue:
            self._encoded.append(self._queue.popleft())
            sources.append(self._encoded[-1])
        missing = len(sources) - len(self._free_slots)
        if missing > 0:
            self._free_slots += range(self._num_slots, self._num_slots + missing)
            self._num_slots += missing
        for source in sources:
            source.slot = self._free_slots.pop()
        self._reserve(sources)
        self._session.reserve(
            self._num_slots, self._state.width_capacity, self._state.tree.num_cells
        )
        with self._timed("encode"):
            self._session.encode(
                [source.content for source in sources],
                [source.index for source in sources],
                [source.slot for source in sources],
            )

    def _open(self, admitted: list[Source]) -> None:
        self._reserve(admitted)
        self._state.tree.reserve_pages(len(admitted))
        self._state.open(
            [source.slot for source in admitted],
            [source.limits for source in admitted],
            [source.prefix for source in admitted],
            self.model.start_id,
        )
        for source in admitted:
            source.opened = self.stats.steps
            self._live[source.slot] = source
        self._live_changed()
        self.stats.refills += 1

    def _live_changed(self) -> None:
        self._live_slot = torch.tensor(
            list(self._live), dtype=torch.int32, device=self.model.device
        )

    def _reserve(self, sources: Iterable[Source] = ()) -> None:
        """Room for every slot, the widest beam, the longest hypothesis and the next step's pages."""
        slots, width, length = self._reserved
        width = max([width] + [source.limits.width for source in sources])
        oldest = next(iter(self._live.values()), None)
        # a source has at most one token a step since it was admitted; two more are for start and next
        needed = 2 if oldest is None else self.stats.steps - oldest.opened + 2
        while length < needed:
            length = max(FIRST_LENGTH, 2 * length)
        reserved = (max(slots, self._num_slots), width, length)
        if reserved != self._reserved:
            self._reserved = reserved
            self._state.reserve(*reserved)

    def _plan(self) -> Tensor:
        """Slots that move in this step, in order of admission."""
        state, slot = self._state, self._live_slot
        _, num_rows, depth, waited = state.progress(slot).unbind(1)  # each [L]
        moves = self.schedule.plan(depth, num_rows, waited)
        if moves is not None:
            state.beams.waited[slot.long()] = torch.where(moves, 0, waited + 1).to(torch.int32)
            slot = slot[moves]
        self._reserve()
        # survivors of a beam of width K need at most ceil(K / PAGE_CELLS) new pages
        tree = state.tree
        tree.reserve_pages(slot.numel() * tree.pages_per_step)
        self.stats.pages = tree.num_total_pages
        self._session.reserve(self._num_slots, state.width_capacity, tree.num_cells)
        return slot

    def _close(self) -> Iterator[Result]:
        """Hand out the results of sources that are done. The one place that waits for the device."""
        progress = self._state.progress(self._live_slot).tolist()
        self._live_rows = sum(num_rows for reason, num_rows, *_ in progress if not reason)
        done = [
            (source, STOP_REASONS[reason])
            for source, (reason, *_) in zip(self._live.values(), progress, strict=True)
            if reason
        ]
        if not done:
            return
        with self._timed("close"):
            results = self._results(done)
            slots = [source.slot for source, _ in done]
            self._session.release(slots)
            self._state.close(slots)
            self._free_slots += slots
            for source, _ in done:
                del self._live[source.slot]
                self._live_tokens -= source.length
            self._live_changed()
        for result in results:
            yield self._counted(result)

    def _results(self, done: list[tuple[Source, str]]) -> list[Result]:
        found = self._state.finished([source.slot for source, _ in done], self.wants_log_probs)
        results = []
        for (source, reason), (hypotheses, steps, expansions, depth) in zip(
            done, found, strict=True
        ):
            scored = [self._hypothesis(source, *parts) for parts in hypotheses]
            scored.sort(
                key=lambda hypothesis: -hypothesis.final_score
            )  # stable: ties as they finished
            error = None
            if reason == "error":
                error = ValueError(
                    f"the model returned NaN or +inf logits for request {source.index} at generated token "
                    f"{depth}; check its weights, dtype and this source"
                )
                scored = []
            n_best = scored[: source.limits.n_best]
            results.append(
                Result(source.index, source.request.id, n_best, reason, steps, expansions, error)
            )
        return results

    def _hypothesis(self, source: Source, tokens, length, score, ended, log_probs) -> Hypothesis:
        final_score = source.limits.scoring.final_score(score, length, source.length)
        if log_probs is not None:
            log_probs = log_probs[len(source.prefix) :]
        return Hypothesis(tokens, score, final_score, ended, log_probs)

    def _counted(self, result: Result) -> Result:
        self.stats.sources += 1
        self.stats.stop_reasons[result.stop_reason] += 1
        return result

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.stats.phase_seconds[phase] += time.perf_counter() - start
