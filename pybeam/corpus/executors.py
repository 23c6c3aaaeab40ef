"""Who decodes parts: this process (`Here`), others on this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from pybeam.corpus.parts import FinishedPart, Part
from pybeam.corpus.worker import Worker


class Executor(Protocol):
    """Decodes parts in any order. Reading the input and writing parts stay with the `Run`."""

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded.

        `parts` reads the input when it is asked for more, so an executor takes only as many as it keeps
        busy with. If it cannot go on, it raises; what it has yielded is kept. When the caller closes
        this generator, all work ends.
        """


class Here:
    """Decodes one part after another in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded."""
        for part in parts:
            yield self._worker.run(part)
