"""Open the files that a command reads and writes; `-` is stdin or stdout."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

import click

# a larger file takes long to count; the progress bar then has no end
MAX_COUNTED_BYTES = 1 << 28


@contextlib.contextmanager
def open_input(path: str, flag: str = "--input") -> Iterator[BinaryIO]:
    """Open the file, or stdin for `-`."""
    if path == "-":
        yield sys.stdin.buffer
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
        yield sys.stdout.buffer
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
