"""Write texts in the order of the input, each as soon as all before it are written."""

from __future__ import annotations

import os

import click

# the exit code that a shell reports for a program ended by SIGPIPE
OUTPUT_CLOSED = 141


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
