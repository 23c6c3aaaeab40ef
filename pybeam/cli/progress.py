"""Write to stderr: warnings, a progress bar on a terminal, a summary of the search's cost."""

from __future__ import annotations

import sys
import time
from collections import Counter

from pybeam.corpus.worker import Answer


class Progress:
    """Count results while they come, and show the user how many there are."""

    def __init__(self, *, has_bar: bool, num_lines: int | None, item: str = "line") -> None:
        from tqdm import tqdm

        self.item = item
        self._bar = tqdm(
            total=num_lines,
            unit=f" {item}s",
            file=sys.stderr,
            disable=not has_bar,
            dynamic_ncols=True,
        )
        self._start = time.perf_counter()
        self._stop_reasons: Counter[str] = Counter()
        self._num_expansions = 0
        self.has_failed = False

    def add(self, answer: Answer) -> None:
        result = answer.result
        if result.error is not None:
            self.fail(f"{self.item} {result.index + 1}: {result.error}")
        if answer.warning:
            self.warn(f"{self.item} {result.index + 1}: {answer.warning}")
        self._stop_reasons[result.stop_reason] += 1
        self._num_expansions += result.expansions
        self._bar.update()

    def warn(self, message: str) -> None:
        self._say(f"pybeam: warning: {message}")

    def fail(self, message: str) -> None:
        self.has_failed = True
        self._say(f"pybeam: error: {message}")

    def close(self) -> None:
        self._bar.close()

    def summary(self, num_steps: int) -> str:
        """Write one line of totals and one line of stop reasons."""
        seconds = time.perf_counter() - self._start
        num_lines = self._stop_reasons.total()
        per_step = self._num_expansions / max(num_steps, 1)
        reasons = ", ".join(f"{name} {num:,}" for name, num in self._stop_reasons.most_common())
        return (
            f"{num_lines:,} {self.item}s in {seconds:.1f} s "
            f"({num_lines / seconds:.1f} {self.item}s/s); "
            f"{num_steps:,} steps, {self._num_expansions:,} expansions "
            f"({per_step:.1f} per step)\nstopped by: {reasons or 'nothing to do'}"
        )

    def _say(self, message: str) -> None:
        self._bar.write(message, file=sys.stderr)
