"""Which other files an ONNX graph names, and whether its weights are finite.

ONNX Runtime reads large weights from files that a graph names, and its release 1.20 reads any file of the
machine. So the names are read here first, from the graph's protocol buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from pybeam.models.finite import not_finite, refused
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
}
# fields of a tensor
DATA_TYPE, FLOATS, NAME, RAW, DOUBLES, ENTRY = 2, 4, 8, 9, 10, 13
# the data types that may hold NaN, by number
FLOAT = 1
DTYPES = {FLOAT: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
# of a tensor that are looked at together
CHUNK = 1 << 18
# wire types of protocol buffers; bytes of the two whose size is fixed
VARINT, DELIMITED = 0, 2
FIXED = {1: 8, 5: 4}


class _Broken(ValueError):
    """These are no protocol buffers."""


class _Stored(NamedTuple):
    """A tensor of a graph."""

    name: str
    data_type: int
    content: tuple[int, int]  # its bytes, of the graph or of the file that `entries` name
    entries: list[tuple[str, str]]


def check_external(path: Path) -> None:
    """Raise ValueError if a graph names a file outside its folder, or is no graph."""
    for stored in _stored(path):
        for key, value in stored.entries:
            if key == "location":
                named_file(path.parent, value, str(path))


def check_weights(path: Path) -> None:
    """Raise ValueError if a weight of a graph is NaN or infinite.

    A tensor of one number may be infinite: it masks. So may the bias of logits be -inf.
    """
    for stored in _stored(path):
        entries = dict(stored.entries)
        location = entries.get("location")
        first, last = stored.content
        file = path if location is None else named_file(path.parent, location, str(path))
        if location is not None:
            first = int(entries.get("offset", 0))
            last = first + int(entries.get("length", file.stat().st_size - first))
        dtype = DTYPES.get(stored.data_type)
        if dtype is None or last - first <= dtype.itemsize:
            continue
        with open(file, "rb") as content:
            for place in range(first, last, CHUNK):
                content.seek(place)
                size = min(CHUNK, last - place) // dtype.itemsize
                part = torch.empty(size, dtype=dtype)
                content.readinto(part.view(torch.uint8).numpy().data)
                if found := not_finite(part, stored.name):
                    raise refused(f"`{stored.name}` in {file}", found)


def _stored(path: Path) -> list[_Stored]:
    """Return the tensors of a graph. Raises ValueError if it is none."""
    if not regular_file(path).stat().st_size:
        raise ValueError(f"{path} must be an ONNX graph, but is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return list(_tensors(content, 0, len(content), "model"))
        except (_Broken, RecursionError) as error:
            raise ValueError(f"{path} must be an ONNX graph, but is damaged") from error


def _tensors(content: mmap.mmap, begin: int, end: int, message: str) -> Iterator[_Stored]:
    """Yield the tensors within a message."""
    if message == "tensor":
        yield _tensor(content, begin, end)
        return
    for field, kind, first, last in _fields(content, begin, end):
        if kind == DELIMITED and field in MESSAGES[message]:
            yield from _tensors(content, first, last, MESSAGES[message][field])


def _tensor(content: mmap.mmap, begin: int, end: int) -> _Stored:
    name, data_type, place = "", 0, (0, 0)
    entries: list[tuple[str, str]] = []
    for field, kind, first, last in _fields(content, begin, end):
        if (field, kind) == (DATA_TYPE, VARINT):
            data_type, _ = _varint(content, first, last)
        elif (field, kind) == (NAME, DELIMITED):
            name = content[first:last].decode("utf-8", "replace")
        elif field in (FLOATS, RAW, DOUBLES) and kind == DELIMITED:
            place = first, last
        elif (field, kind) == (ENTRY, DELIMITED):
            entries.append(_entry(content, first, last))
    return _Stored(name, data_type, place, entries)


def _entry(content: mmap.mmap, begin: int, end: int) -> tuple[str, str]:
    """Return a key and a value, of which the last ones count."""
    found = {
        field: content[first:last].decode("utf-8", "replace")
        for field, kind, first, last in _fields(content, begin, end)
        if kind == DELIMITED
    }
    return found.get(1, ""), found.get(2, "")


def _fields(content: mmap.mmap, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of the content of every field of a message."""
    while place < end:
        key, place = _varint(content, place, end)
        field, kind = key >> 3, key & 7
        size = FIXED.get(kind, 0)
        if kind == DELIMITED:
            size, place = _varint(content, place, end)
        elif kind == VARINT:
            size = _varint(content, place, end)[1] - place
        elif not size:
            raise _Broken
        if place + size > end:
            raise _Broken
        yield field, kind, place, place + size
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
