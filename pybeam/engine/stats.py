"""Statistics of one decode or stream call, and a clock for its phases."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch.autograd import profiler

from pybeam.request import Result

# "replay" stands for those from plan to report where a step is a CUDA graph
PHASES = ("encode", "plan", "model", "select", "commit", "replay", "report", "close")
RANGE_PREFIX = "pybeam::"  # how the names of ranges in a trace begin


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
    pages: int = 0  # pages that the pool of keys and values has; it never shrinks

    def count(self, result: Result) -> Result:
        """The result, counted."""
        self.sources += 1
        self.stop_reasons[result.stop_reason] += 1
        return result

    @property
    def expansions_per_step(self) -> float:
        return self.expansions / self.steps if self.steps else 0.0


class PhaseClock:
    """``with clock("model"):`` adds the host seconds of the block to ``seconds["model"]``.

    While a profiler is on (`torch.profiler`, or NVTX ranges for Nsight Systems through
    `torch.autograd.profiler.emit_nvtx`), the block is also a range ``pybeam::model``. Phases follow
    one another and never nest, so that their seconds sum to the time spent in any of them; on a GPU
    they are the time the host takes to launch the work, or waits for it.

    Args:
        seconds: by phase, of `PHASES`; added to.
    """

    __slots__ = ("_phase", "_range", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._phase: str | None = None  # the one that is open
        self._range: AbstractContextManager[Any] | None = None

    # the clock is its own context manager, since a new object per phase would cost more than the rest
    def __call__(self, phase: str) -> PhaseClock:
        assert self._phase is None, f"{phase!r} begins before {self._phase!r} has ended"
        assert phase in self._seconds, f"{phase!r} is none of {', '.join(self._seconds)}"
        self._phase = phase
        return self

    def __enter__(self) -> None:
        assert self._phase is not None, "a phase is entered before it has a name"
        if profiler._is_profiler_enabled:
            opened: AbstractContextManager[Any] = profiler.record_function(
                RANGE_PREFIX + self._phase
            )
            opened.__enter__()
            self._range = opened
        self._start = perf_counter()

    def __exit__(self, *error: Any) -> None:
        assert self._phase is not None, "a phase ends that has not begun"
        self._seconds[self._phase] += perf_counter() - self._start
        self._phase = None
        if self._range is not None:
            self._range.__exit__(*error)
            self._range = None
