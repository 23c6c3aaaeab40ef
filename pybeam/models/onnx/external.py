"""Which other files an ONNX graph names.

ONNX Runtime reads large weights from files that a graph names, and its release 1.20 reads any file of the
machine. So the names are read here first, from the graph's protocol buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from pybeam.text.model_files import named_file, regular_file

# of each message, by field number: the messages that may hold tensors; see onnx.proto
MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
# wire types of protocol buffers; bytes of the two whose size is fixed
VARINT, DELIMITED = 0, 2
FIXED = {1: 8, 5: 4}


class _Broken(ValueError):
    """These are no protocol buffers."""


def check_external(path: Path) -> None:
    """Raise ValueError if a graph names a file outside its folder, or is no graph."""
    if not regular_file(path).stat().st_size:
        raise ValueError(f"{path} must be an ONNX graph, but is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            names = list(_names(content, 0, len(content), "model"))
        except (_Broken, RecursionError) as error:
            raise ValueError(f"{path} must be an ONNX graph, but is damaged") from error
    for name in names:
        named_file(path.parent, name, str(path))


def _names(content: mmap.mmap, begin: int, end: int, message: str) -> Iterator[str]:
    """Yield the names of files within a message."""
    entry = {}
    for field, first, last in _fields(content, begin, end):
        if message == "entry":
            entry[field] = content[first:last]
        elif field in MESSAGES[message]:
            yield from _names(content, first, last, MESSAGES[message][field])
    # a key and a value, of which the last ones count
    if entry.get(1) == b"location":
        yield entry.get(2, b"").decode("utf-8", "replace")


def _fields(content: mmap.mmap, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of every field of a message that has a length."""
    while place < end:
        key, place = _varint(content, place, end)
        field, kind = key >> 3, key & 7
        size = FIXED.get(kind, 0)
        if kind in (VARINT, DELIMITED):
            size, place = _varint(content, place, end)
            size *= kind == DELIMITED
        elif not size:
            raise _Broken
        if place + size > end:
            raise _Broken
        if kind == DELIMITED:
            yield field, place, place + size
        place += size


def _varint(content: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """Return a number, and the place behind it."""
    number = 0
    for i in range(10):
        if place + i >= end:
            break
        byte = content[place + i]
        number |= (byte & 127) << 7 * i
        if byte < 128:
            # as parsers do, which keep 64 bits
            return number % 2**64, place + i + 1
    raise _Broken
