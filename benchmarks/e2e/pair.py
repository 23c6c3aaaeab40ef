"""One model's weights in pybeam and in transformers, and the systems that translate with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pybeam
from benchmarks import peers
from benchmarks.bench_streaming import methods
from benchmarks.bench_translate import MAX_LENGTH, NORMALISED, Ours
from benchmarks.e2e.meter import Meter

GENERATE = "transformers.generate"


class Pair:
    """Both are loaded when they are first used; so is the directory made, if it is."""

    def __init__(
        self, name: str, directory: Callable[[], Path], device: str, dtype: str, meter: Meter
    ) -> None:
        self.name, self.device, self.dtype = name, device, dtype
        self._directory, self._meter = directory, meter
        self.weight_bytes: dict[str, int] = {}  # on a GPU, by what is loaded

    @cached_property
    def directory(self) -> Path:
        return self._directory()

    @cached_property
    def ours(self):
        return self._loaded(
            "ours", lambda: pybeam.load_model(self.directory, device=self.device, dtype=self.dtype)
        )

    @cached_property
    def theirs(self):
        return self._loaded(
            "theirs", lambda: peers.transformers_model(self.directory, self.device, self.dtype)
        )

    def _loaded(self, name: str, load: Callable):
        before = self._meter.allocated_bytes()
        model = load()
        self.weight_bytes[name] = self._meter.allocated_bytes() - before
        return model

    def system(self, name: str, width: int, n: int) -> peers.Translate:
        """A row of the first paper's tables, or ``transformers.generate``."""
        if name == GENERATE:
            return peers.transformers_beam(self.theirs, width, n, MAX_LENGTH)
        return Ours(self.ours, *methods(width, n)[name])

    def until(self, name: str, width: int, n: int, length: int) -> peers.Translate:
        """The same search with hypotheses that all end at `length` tokens; for the time of a step."""
        if name == GENERATE:
            return peers.transformers_beam(self.theirs, width, n, length, min_length=length)
        fixed = pybeam.fixed_beam(
            width, min_length=length - 1, max_length=length, scoring=NORMALISED
        )
        return Ours(self.ours, fixed, pybeam.Batch(n))
