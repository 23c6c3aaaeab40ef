"""Open the files that a command reads and writes, and write texts in order; `-` is stdin or stdout."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

import click

# the exit code that a shell reports for a program ended by SIGPIPE
OUTPUT_CLOSED = 141
# a larger file takes long to count; the progress bar then has no end
MAX_COUNTED_BYTES = 1 << 28


def standard_input(said: str) -> BinaryIO:
    """Return stdin. Raises ClickException, which begins with what was `said`, if it is closed."""
    # Python has none then, in spite of its type
    if sys.stdin is None:
        raise click.ClickException(f"{said}: stdin is closed; give a file")
    return sys.stdin.buffer


def standard_output(said: str) -> BinaryIO:
    """Return stdout. Raises ClickException, which begins with what was `said`, if it is closed."""
    if sys.stdout is None:
        raise click.ClickException(f"{said}: stdout is closed; give a file")
    return sys.stdout.buffer


def check_writable(path: str, flag: str = "--output") -> None:
    """Raise ClickException for a file that cannot be written now, and not after the work for it."""
    is_new = not os.path.exists(path)
    try:
        open(path, "ab").close()
    except OSError as error:
        raise click.ClickException(f"{flag} {path}: {error.strerror}") from error
    if is_new:
        os.remove(path)


@contextlib.contextmanager
def open_input(path: str, flag: str = "--input") -> Iterator[BinaryIO]:
    """Open the file, or stdin for `-`."""
    if path == "-":
        yield standard_input(f"{flag} -")
        return
    try:
        file = open(path, "rb", buffering=0)
    except OSError as error:
        raise click.ClickException(f"{flag} {path}: {error.strerror}") from error
    with file:
        yield file


@contextlib.contextmanager
def open_output(path: str, input_file: BinaryIO | None = None) -> Iterator[BinaryIO]:
    """Open the file, or stdout for `-`. Raises UsageError if it is the input."""
    if path == "-":
        yield standard_output("--output -")
        return
    if input_file is not None and os.path.exists(path):
        if os.path.samestat(os.stat(path), os.fstat(input_file.fileno())):
            raise click.UsageError(f"--output {path} is the input; write to another file")
    try:
        file = open(path, "wb", buffering=0)
    except OSError as error:
        raise click.ClickException(f"--output {path}: {error.strerror}") from error
    with file:
        yield file


def count_lines(file: BinaryIO) -> int | None:
    """Count the lines of a file of moderate size. Returns None if their number is unknown."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_COUNTED_BYTES:
        return None
    start = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    num_lines, last = 0, b"\n"
    while chunk := os.read(file.fileno(), 1 << 20):
        num_lines += chunk.count(b"\n")
        last = chunk[-1:]
    os.lseek(file.fileno(), start, os.SEEK_SET)
    return num_lines + (last != b"\n")


class OrderedWriter:
    """Write each text as soon as all before it are written. Only early texts are held back."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._early: dict[int, str] = {}
        self._begun: dict[int, str] = {}  # beginnings of texts whose turn has not come
        self._unwritten = b""  # bytes that are left after an interrupted write
        self.num_written = 0

    def more(self, index: int, text: str) -> None:
        """Write a piece of a text, of which more is to come, or hold it back."""
        if index == self.num_written:
            self._append(text)
        else:
            self._begun[index] = self._begun.get(index, "") + text

    def add(self, index: int, text: str) -> None:
        """Write a text, or the rest of one, or hold it back."""
        self._early[index] = self._begun.pop(index, "") + text
        while self.num_written in self._early:
            text = self._early.pop(self.num_written)
            self.num_written += 1
            self._append(text)
        self._append(self._begun.pop(self.num_written, ""))

    def finish(self, *, is_numbered: bool) -> list[int]:
        """Write what is held back, if texts say themselves which line they belong to.

        Other texts would be taken for those of lines before them, and an empty line in such a line's place
        for an empty text. Returns the lines that are missing among those up to the last one known.
        """
        self._append("")
        known = sorted(self._early)
        last = max(known, default=-1)
        if is_numbered:
            self._append("".join(self._early[index] for index in known))
        missing = set(range(self.num_written, last + 1))
        return sorted(missing - self._early.keys() if is_numbered else missing)

    def _append(self, text: str) -> None:
        self._unwritten += text.encode("utf-8", errors="replace")
        while self._unwritten:
            try:
                num_bytes = os.write(self._fd, self._unwritten)
            except BrokenPipeError:
                raise click.exceptions.Exit(OUTPUT_CLOSED) from None
            except OSError as error:
                message = f"cannot write the output: {error.strerror}"
                raise click.ClickException(message) from error
            self._unwritten = self._unwritten[num_bytes:]
