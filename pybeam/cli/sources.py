"""Read lines as they come."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import click

from pybeam.corpus.parts import Line
from pybeam.corpus.readers import BOM
from pybeam.corpus.tasks import text_of
from pybeam.platforms.system import is_ready

CHUNK_BYTES = 1 << 20
# a writer who is silent for so long has paused
PAUSE_SECONDS = 0.05
# after which a wait is interrupted, so that Ctrl-C is noticed
WAIT_SECONDS = 0.5


class LineReader:
    """Read the lines of a file descriptor, in runs that end when its writer pauses.

    A file is one run. A slow pipe or a terminal has many, so that typed lines are translated before the
    end of the input.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self.has_ended = False

    def run(self) -> Iterator[bytes]:
        """Read the lines up to the next pause. There are none only if the input has ended."""
        num_lines = 0
        while self._fill(may_wait=num_lines == 0):
            num_lines += 1
            yield self._lines.popleft()

    def lines(self) -> Iterator[bytes]:
        """Yield all lines, whatever pauses their writer makes."""
        while not self.has_ended or self._lines:
            yield from self.run()

    def _fill(self, may_wait: bool) -> bool:
        """Read more. Returns whether there is a line now."""
        while not self._lines and not self.has_ended:
            if not may_wait and not is_ready(self._fd, PAUSE_SECONDS):
                break
            # a blocking read would notice a Ctrl-C that came just before it only when it returns
            while not is_ready(self._fd, WAIT_SECONDS):
                pass
            self._read()
        return bool(self._lines)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except OSError as error:
            raise click.ClickException(f"cannot read the input: {error.strerror}") from error
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            self._lines.append(b"".join([*self._partial, piece]))
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        if not chunk:
            self.has_ended = True
            if self._partial:
                self._lines.append(b"".join(self._partial))


class Lines:
    """The lines of a file, or those of several side by side, up to the first that is not UTF-8.

    Args:
        reader: the file.
        beside: a file that has a line for each of its lines.
        flag: names that file in messages.

    Attributes:
        num_lines: lines that have been read.
        error: why no more is read; None: the input has ended, or goes on.
    """

    def __init__(
        self, reader: LineReader, beside: LineReader | None = None, flag: str = ""
    ) -> None:
        self._reader, self._flag = reader, flag
        self._beside = None if beside is None else beside.lines()
        self.num_lines = 0
        self.error: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more lines."""
        return self.error is not None or self._reader.has_ended

    def run(self) -> Iterator[Line]:
        """Yield the lines up to the next pause of the input."""
        for line in self._reader.run():
            fields = [self._checked(line)]
            if self.error is not None:
                self.error = f"line {self.num_lines + 1}: {self.error}"
                return
            if self._beside is not None:
                fields += self._line_beside()
            if self.error is not None:
                return
            self.num_lines += 1
            yield tuple(fields)
        if self._beside is not None and self.has_ended and next(self._beside, None) is not None:
            self.error = f"the input ends after line {self.num_lines}, but {self._flag} goes on"

    def _line_beside(self) -> list[bytes]:
        assert self._beside is not None
        line = next(self._beside, None)
        number = self.num_lines + 1
        if line is None:
            self.error = f"{self._flag} ends before line {number} of the input"
            return []
        field = self._checked(line)
        if self.error is not None:
            self.error = f"line {number} of {self._flag}: {self.error}"
        return [field]

    def _checked(self, line: bytes) -> bytes:
        field = line.removeprefix(BOM) if self.num_lines == 0 else line
        try:
            text_of(field)
        except ValueError as error:
            self.error = str(error)
        return field
