"""Statistics of one decode or stream call, and a clock for its phases."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch.autograd import profiler

from pybeam.request import Result

# "replay" is plan to report in a CUDA graph; in many steps of one call "model" holds what "select" is
PHASES = ("encode", "plan", "model", "select", "commit", "replay", "report", "close")
RANGE_PREFIX = "pybeam::"  # how the names of ranges in a trace begin


@dataclass
class Stats:
    """Counts of one decode or stream call: the columns of the papers' tables.

    Attributes:
        sources: results so far, errors included.
        steps: passes of the search loop.
        expansions: rows sent through the model, in all steps together. Held hypotheses are not sent.
        refills: times that sources were admitted.
        stop_reasons: results by `Result.stop_reason`.
        seconds: of the call, while it computes: a stream's caller may take its time.
        phase_seconds: host seconds of each phase of a step, by name. On a GPU they are the time in which the
            host launches the work or waits for it.
        pages: pages of 16 cells that the pool of keys and values has. It never shrinks.
        free_pages: those that no source holds, as the host last read.
    """

    sources: int = 0
    steps: int = 0
    expansions: int = 0
    refills: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pages: int = 0
    free_pages: int = 0

    def count(self, result: Result) -> Result:
        """Count a result, and return it."""
        self.sources += 1
        self.stop_reasons[result.stop_reason] += 1
        return result

    def continuing(self, earlier: Stats) -> Stats:
        """Go on counting where an earlier call has ended, whose pages are gone. Returns these counts."""
        vars(self).update(vars(earlier), pages=0, free_pages=0)
        return self

    @property
    def expansions_per_step(self) -> float:
        """Rows that a step sends through the model, on average."""
        return self.expansions / self.steps if self.steps else 0.0


class PhaseClock:
    """``clock("model")`` ends the phase that is open and begins another; ``clock(None)`` only ends it.

    The host's seconds of a phase are added to ``seconds["model"]``. While a profiler is on (`torch.profiler`,
    or NVTX ranges for Nsight Systems through `torch.autograd.profiler.emit_nvtx`), a phase is also a range
    ``pybeam::model``. Phases never nest, so their seconds can be added up. On a GPU they are the time in
    which the host launches the work or waits for it.

    Args:
        seconds: seconds by phase of `PHASES`, to which the clock adds.
    """

    __slots__ = ("_phase", "_range", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._phase: str | None = None  # the one that is open
        self._start = 0.0
        self._range: AbstractContextManager[Any] | None = None

    def add(self, phases: tuple[str, ...], seconds: tuple[float, ...]) -> None:
        """Add seconds of phases that somebody else has measured."""
        for phase, one in zip(phases, seconds, strict=True):
            self._seconds[phase] += one

    # one call between two phases, because two and a context manager would cost more than all else
    def __call__(self, phase: str | None) -> None:
        assert phase is None or phase in self._seconds, (
            f"{phase!r} is none of {', '.join(self._seconds)}"
        )
        now = perf_counter()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._start
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        self._phase, self._start = phase, now
        if phase is not None and profiler._is_profiler_enabled:
            self._range = profiler.record_function(RANGE_PREFIX + phase)
            self._range.__enter__()  # type: ignore[no-untyped-call]
