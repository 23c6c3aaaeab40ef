"""Files of shortlists, read line by line as bytes: tokens are whatever stands between ASCII blanks."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file

# a rule that names every token of a large vocabulary
MAX_LINE_BYTES = 1 << 22
# unpacked; tables of a few million lines have a fifth
MAX_TABLE_BYTES = 1 << 29


class Rule(NamedTuple):
    """A line of a `vmap.txt`."""

    line: int  # counted from 1 on
    source: bytes  # tokens with blanks between them
    targets: list[bytes]


class Translation(NamedTuple):
    """A line of a lexical table."""

    target: bytes
    source: bytes
    probability: float


def lexical_table(path: str | os.PathLike[str]) -> Iterator[Translation]:
    """Yield the lines of a lexical table: a target token, a source token, the probability of the target.

    A file whose name ends in `.gz` is unpacked on the way.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line has another form, or the file is damaged or too large.
    """
    for number, line in _lines(Path(path)):
        parts = line.split()
        probability = _probability(parts[2]) if len(parts) == 3 else None
        if probability is None:
            raise ValueError(
                f"{path}, line {number}: must be a target token, a source token and a probability, but is "
                f"{line[:80]!r}"
            )
        yield Translation(parts[0], parts[1], probability)


def vocabulary_map(path: str | os.PathLike[str]) -> Iterator[Rule]:
    """Yield the rules of a `vmap.txt`.

    A line has source tokens and target tokens, with a tab between the two. The rule of no source token counts
    for every source.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line has no tab, or the file is too large.
    """
    for number, line in _lines(regular_file(Path(path), MAX_TEXT_BYTES)):
        source, tab, targets = line.rpartition(b"\t")
        if not tab:
            raise ValueError(
                f"{path}, line {number}: must be source tokens, a tab and target tokens, but is "
                f"{line[:80]!r}"
            )
        yield Rule(number, source, targets.split())


def is_vocabulary_map(path: str | os.PathLike[str]) -> bool:
    """Whether the first line has one tab, as those of a `vmap.txt`. Raises as `lexical_table`."""
    return any(line.count(b"\t") == 1 for _, line in itertools.islice(_lines(Path(path)), 1))


def _probability(word: bytes) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty with their numbers, from 1 on."""
    regular_file(path)
    opened = gzip.open if path.name.endswith(".gz") else open
    num_bytes = 0
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                num_bytes += len(line)
                if len(line) > MAX_LINE_BYTES or num_bytes > MAX_TABLE_BYTES:
                    raise ValueError(
                        f"{path}, line {number}: lines must have at most {MAX_LINE_BYTES:,} bytes, and all "
                        f"of them {MAX_TABLE_BYTES:,}; is it the right file?"
                    )
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no sound gzip file: {error}") from error
