"""Things that all benchmarks of a run share: the device, the data, the networks, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks import corpus
from benchmarks.journal import Journal
from benchmarks.meter import Meter
from benchmarks.networks import Networks
from benchmarks.sizes import Sizes


@dataclass
class Setup:
    """Lines and repeats beat those of the cases; `folder` is for what is made on the way."""

    device: str
    size: Sizes
    threads: int
    folder: Path
    journal: Journal
    data: Path | None = None
    lines: int | None = None
    only: tuple[str, ...] = ()
    is_tiny: bool = False
    _corpora: dict[tuple, corpus.Corpus] = field(default_factory=dict)

    @cached_property
    def networks(self) -> Networks:
        return Networks(self.folder, self.device, self.size.dtype, self.size.widened)

    @cached_property
    def meter(self) -> Meter:
        return Meter(self.device)

    def corpus(
        self, split: str = "dev", languages: tuple[str, str] = ("es", "en")
    ) -> corpus.Corpus:
        key = split, languages
        if key not in self._corpora:
            self._corpora[key] = corpus.load(self.data, split, languages=languages)
        return self._corpora[key]
