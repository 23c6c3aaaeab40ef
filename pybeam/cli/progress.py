"""Write to stderr: warnings, a progress bar on a terminal, a summary of the cost."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import reason_of
from pybeam.text.counts import counted

if TYPE_CHECKING:
    from pybeam.corpus.worker import Answer
    from pybeam.speech.whisper import Progress as News


class Progress(ABC):
    """Show the user how a run goes.

    Args:
        has_bar: whether there is a bar.
        has_summary: whether the cost is said in the end.
        bar: of tqdm.
    """

    def __init__(self, *, has_bar: bool, has_summary: bool, **bar: Any) -> None:
        from tqdm import tqdm

        self._bar = tqdm(file=sys.stderr, disable=not has_bar, dynamic_ncols=True, **bar)
        self._has_summary = has_summary
        self._start = time.perf_counter()
        self.has_failed = False

    def warn(self, message: str) -> None:
        """Say what may be wrong."""
        self._bar.write(f"pybeam: warning: {message}", file=sys.stderr)

    def fail(self, message: str) -> None:
        """Say what has failed."""
        self.has_failed = True
        self._bar.write(f"pybeam: error: {message}", file=sys.stderr)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def summarise(self) -> None:
        """Say what was done."""
        if self._has_summary:
            click.echo(self._summary(time.perf_counter() - self._start), err=True)

    @abstractmethod
    def _summary(self, seconds: float) -> str:
        """Return what was done within these seconds."""


class LineProgress(Progress):
    """Counts lines, or files. `num_steps` are those of the decoder, at the end."""

    def __init__(
        self, item: str, num_lines: int | None, *, has_bar: bool, has_summary: bool
    ) -> None:
        super().__init__(
            has_bar=has_bar, has_summary=has_summary, total=num_lines, unit=f" {item}s"
        )
        self.item, self.num_steps = item, 0
        self._stop_reasons: Counter[str] = Counter()
        self._num_expansions = 0

    def add(self, answer: Answer) -> None:
        """Count an answer, and say what is wrong with it."""
        result = answer.result
        if result.error is not None:
            self.fail(f"{self.item} {result.index + 1}: {reason_of(result.error)}")
        if answer.warning:
            self.warn(f"{self.item} {result.index + 1}: {answer.warning}")
        self._stop_reasons[result.stop_reason] += 1
        self._num_expansions += result.expansions
        self._bar.update()

    def _summary(self, seconds: float) -> str:
        num_lines = self._stop_reasons.total()
        per_step = self._num_expansions / max(self.num_steps, 1)
        reasons = ", ".join(f"{name} {num:,}" for name, num in self._stop_reasons.most_common())
        return (
            f"{counted(num_lines, self.item)} in {seconds:.1f} s "
            f"({num_lines / seconds:.1f} {self.item}s/s); "
            f"{counted(self.num_steps, 'step')}, {counted(self._num_expansions, 'expansion')} "
            f"({per_step:.1f} per step)\nstopped by: {reasons or 'nothing to do'}"
        )


class SoundProgress(Progress):
    """Counts seconds of sound while they are transcribed."""

    def __init__(self, names: tuple[str, ...], *, has_summary: bool) -> None:
        from pybeam.speech.sound import sound_seconds

        has_bar = has_summary and sys.stderr.isatty()
        total = round(sum(map(sound_seconds, names)), 1) if has_bar else None
        super().__init__(
            has_bar=has_bar, has_summary=has_summary, total=total, unit="s", unit_scale=True
        )
        self._position: dict[int, float] = {}
        self._num_left = self._num_files = len(names)

    def add(self, news: News) -> None:
        """Take the news of a recording."""
        if news.error is not None:
            self.fail(f"file {news.index + 1}: {reason_of(news.error)}")
            return
        position = news.duration if news.transcript is not None else news.position
        self._bar.update(position - self._position.get(news.index, 0.0))
        self._position[news.index] = position
        self._num_left -= news.transcript is not None

    def finish(self, is_interrupted: bool) -> None:
        """Say what was done, and what was not."""
        self.close()
        if is_interrupted:
            are = "is" if self._num_left == 1 else "are"
            self.warn(f"interrupted; {counted(self._num_left, 'file')} {are} not finished")
        self.summarise()

    def _summary(self, seconds: float) -> str:
        sound, num_done = sum(self._position.values()), self._num_files - self._num_left
        factor = f"; real-time factor {seconds / sound:.3f}" if sound else ""
        return f"{counted(num_done, 'file')}, {sound:,.1f} s of sound in {seconds:.1f} s{factor}"
