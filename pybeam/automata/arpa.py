"""Read language models in ARPA's text form."""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np

from pybeam.automata.ngrams import NGrams, Order

HEADER, FOOTER = "\\data\\", "\\end\\"
SECTION = re.compile(r"\\(\d+)-grams:")
MOST_WORDS = 12  # of an n-gram
LONGEST_LINE = 1 << 16
# words may hold other spaces, such as one that breaks no line
SPACES = " \t\r\n"
FIELDS = re.compile(r"[ \t\r\n]+")


def read_arpa(path: Path) -> NGrams:
    """Read an ARPA file, packed by gzip if its name ends in `.gz`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not of this form; the message names the line.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            return _Reader(path).read(_lines_of(path, lines))
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is no sound ARPA file: {error}") from error


def _lines_of(path: Path, file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise ValueError(
                f"{path}, line {number:,}, must have fewer than {LONGEST_LINE:,} characters"
            )
        yield line


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._line = path, 0
        self._words: list[str] = []
        self._index: dict[str, int] = {}
        self._announced: dict[int, int] = {}

    def read(self, lines: Iterator[str]) -> NGrams:
        numbered = self._numbered(lines)
        for line in numbered:
            if line == HEADER:
                break
        else:
            self._refuse(f"must have a line {HEADER!r}, but has none")
        orders: list[Order] = []
        line = self._announcements(numbered)
        while line != FOOTER:
            match = SECTION.fullmatch(line)
            expected = len(orders) + 1
            if match is None or int(match[1]) != expected:
                self._refuse(f"must have \\{expected}-grams: or {FOOTER} here, but has {line!r}")
            order, line = self._section(expected, numbered)
            orders.append(order)
        if len(orders) != len(self._announced):
            self._refuse(f"must have {len(self._announced)} orders, but has {len(orders)}")
        return NGrams(self._words, orders)

    def _numbered(self, lines: Iterator[str]) -> Iterator[str]:
        for self._line, text in enumerate(lines, 1):
            line = text.strip(SPACES)
            if line:
                yield line

    def _announcements(self, lines: Iterator[str]) -> str:
        for line in lines:
            if not line.startswith("ngram "):
                break
            order, _, count = line.removeprefix("ngram ").partition("=")
            if not (order.strip().isdecimal() and count.strip().isdecimal()):
                self._refuse(f"must have a line such as 'ngram 1=100', but has {line!r}")
            self._announced[int(order)] = int(count)
        else:
            line = FOOTER
        largest = len(self._announced)
        if sorted(self._announced) != list(range(1, largest + 1)) or not 1 <= largest <= MOST_WORDS:
            self._refuse(f"must announce orders from 1 to at most {MOST_WORDS}")
        return line

    def _section(self, size: int, lines: Iterator[str]) -> tuple[Order, str]:
        gram, log_prob, back_off = array("i"), array("f"), array("f")
        for line in lines:
            if line[0] == "\\":
                break
            fields = FIELDS.split(line)
            if len(log_prob) == self._announced.get(size):
                self._refuse(
                    f"must have {len(log_prob):,} {size}-grams, as announced, but has more"
                )
            if len(fields) not in (size + 1, size + 2):
                self._refuse(
                    f"must have a number, {size} words and at most one more, but has {line!r}"
                )
            try:
                log_prob.append(float(fields[0]))
                back_off.append(float(fields[-1]) if len(fields) == size + 2 else 0.0)
                gram.extend(self._numbers_of(fields[1 : size + 1], size))
            except KeyError as error:
                self._refuse(f"must have words among the 1-grams, but has {error.args[0]!r}")
            except ValueError:
                self._refuse(f"must have numbers at both ends, but has {line!r}")
        else:
            self._refuse(f"must go on to {FOOTER}, but the file ends; copy the file again")
        found = len(log_prob)
        if found != self._announced.get(size):
            announced = self._announced.get(size, 0)
            self._refuse(f"must have {announced:,} {size}-grams, as announced, but has {found:,}")
        arrays = (
            np.array(gram, dtype=np.int32).reshape(-1, size),
            np.array(log_prob),
            np.array(back_off),
        )
        if not all(np.isfinite(numbers).all() for numbers in arrays[1:]):
            self._refuse(f"must have finite numbers among its {size}-grams")
        return Order(arrays[0], np.minimum(arrays[1], 0.0), arrays[2]), line

    def _numbers_of(self, words: list[str], size: int) -> list[int]:
        if size == 1 and words[0] not in self._index:
            self._index[words[0]] = len(self._words)
            self._words.append(words[0])
        return [self._index[word] for word in words]

    def _refuse(self, problem: str) -> NoReturn:
        raise ValueError(f"{self._path}, line {self._line:,}, {problem}")
