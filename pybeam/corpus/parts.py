"""Parts: contiguous runs of lines of the whole input, which are decoded and written one by one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

# a line takes as long as so many bytes more, however short it is
LINE_BYTES = 16
# of parts and of files that a run writes
new_digest = partial(hashlib.blake2b, digest_size=16)


class CorpusError(ValueError):
    """The input, the output folder or what is asked for keeps a run from going on. It says what to do.

    Attributes:
        path: the input file that cannot be read to its end; None: it is something else.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Unreadable:
    """The mark in a line's place if its file holds no text there, such as JSON without the field."""

    reason: str


# the fields of one line: one to translate, two to score (source and target)
Line = tuple[bytes | Unreadable, ...]


@dataclass(frozen=True)
class Part:
    """Lines `first_line`, … of the whole input, from 0. `index` counts parts, from 0."""

    index: int
    first_line: int
    lines: list[Line]

    @property
    def num_lines(self) -> int:
        """The number of lines."""
        return len(self.lines)

    @property
    def span(self) -> str:
        """Its lines as people count them."""
        return f"lines {self.first_line + 1:,} to {self.first_line + self.num_lines:,}"

    @property
    def num_bytes(self) -> int:
        """The bytes of all lines."""
        fields = (field for line in self.lines for field in line)
        return sum(len(field) for field in fields if isinstance(field, bytes))

    @property
    def cost(self) -> int:
        """Its cost beside other parts: a step for every few bytes, and some for every line."""
        return self.num_bytes + LINE_BYTES * self.num_lines

    @property
    def checksum(self) -> str:
        """A checksum of the lines and of where each one ends."""
        digest = new_digest()
        for line in self.lines:
            for one in line:
                content = one if isinstance(one, bytes) else one.reason.encode()
                kind = b"+" if isinstance(one, bytes) else b"-"
                digest.update(b"%s%d:" % (kind, len(content)))
                digest.update(content)
        return digest.hexdigest()


@dataclass
class Counts:
    """The cost of decoding some lines, to be added up."""

    lines: int = 0
    tokens: int = 0  # of the best hypotheses
    steps: int = 0
    expansions: int = 0
    failed: int = 0
    warned: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Counts) -> Counts:
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)
        return self


@dataclass(frozen=True)
class FinishedPart:
    """A part that has been decoded.

    Attributes:
        index, first_line: as those of its `Part`.
        checksum: that of its `Part`.
        outputs: one text per line of the input, with the line end; a line that failed has an empty line,
            and what a form writes nothing for has "".
        problems: by line of the whole input, from 1: `line`, and `error` (it failed) or `warning`.
        counts: what it took.
    """

    index: int
    first_line: int
    checksum: str
    outputs: list[str]
    problems: list[dict[str, str | int]]
    counts: Counts


def parts_of(lines: Iterable[Line], num_lines: int) -> Iterator[Part]:
    """Cut lines into parts of `num_lines`; the last one may be shorter."""
    rest = iter(lines)
    index = 0
    while part := list(islice(rest, num_lines)):
        yield Part(index, index * num_lines, part)
        index += 1
