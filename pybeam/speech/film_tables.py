"""Look at the tables of MP4 and QuickTime files before FFmpeg does, which makes lists as long as they say."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from pybeam.speech.containers import Damaged

FIRST_KINDS = {b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"}
TABLES = re.compile(rb"trak|stsz|stz2|stsc|stco|co64|stts|elst|trun|cmov")
# samples that a track, or all fragments, may list: two days of AAC
MOST_SAMPLES = 1 << 23
# boxes of a file, and bytes of one that is not its sound
MOST_BOXES, LARGEST_BOX = 1 << 20, 1 << 28
SINGLE = b"\0\0\0\1"


def is_film(file: BinaryIO, name: str) -> bool:
    """Whether a file, which is at its beginning, is MP4 or QuickTime; refuse one that lists too much.

    The names of tables are looked for anywhere but in the sound, so that it does not matter which boxes they
    are in.

    Raises:
        Damaged: they do, or are packed.
    """
    is_one = file.read(8)[4:] in FIRST_KINDS
    size = file.seek(0, os.SEEK_END)
    if is_one:
        in_fragments = 0
        for content in _boxes(file, size, name):
            found = list(TABLES.finditer(content))
            in_fragments += sum(
                _number(content, one.end() + 4) for one in found if one[0] == b"trun"
            )
            begins = [i for i, one in enumerate(found) if one[0] == b"trak"]
            for first, last in zip([0, *begins], [*begins, len(found)], strict=True):
                if not _fits(content, found[first:last], size):
                    raise _too_long(name)
        if in_fragments > min(size, MOST_SAMPLES):
            raise _too_long(name)
    file.seek(0)
    return is_one


def _too_long(name: str) -> Damaged:
    return Damaged(f"{name} must list no more samples than it has; fetch it again")


def _fits(content: bytes, tables: list[re.Match[bytes]], size: int) -> bool:
    """Whether the tables of a track list at most as many samples as `size` bytes can hold."""
    places: dict[bytes, list[int]] = {}
    for one in tables:
        places.setdefault(one[0], []).append(one.end())
    most = {
        kind: max((_number(content, place + skip) for place in places.get(kind, [])), default=0)
        for kind, skip in ((b"stsz", 8), (b"stz2", 8), (b"stco", 4), (b"co64", 4), (b"elst", 4))
    }
    num_samples = max(most[b"stsz"], most[b"stz2"])
    num_chunks = max(most[b"stco"], most[b"co64"])
    times = places.get(b"stts", [])
    # sound of which a sample is a tick is listed by its chunks
    is_single = bool(times) and all(
        content[at + 4 : at + 8] == content[at + 12 : at + 16] == SINGLE for at in times
    )
    listed = 0 if is_single else num_samples * max(1, most[b"elst"])
    in_chunks = max(
        (_in_chunks(content, at, num_chunks) for at in places.get(b"stsc", [])), default=0
    )
    return max(num_samples, in_chunks) <= size and listed <= MOST_SAMPLES and b"cmov" not in places


def _in_chunks(content: bytes, place: int, num_chunks: int) -> int:
    """Return how many samples so many chunks have, by a table of runs of them."""
    num = min(_number(content, place + 4), (len(content) - place - 8) // 12)
    if num <= 0:
        return 0
    rows = np.frombuffer(content, ">u4", 3 * num, place + 8).reshape(-1, 3).astype(np.float64)
    ends = np.append(rows[1:, 0], num_chunks + 1)
    return int(((ends - rows[:, 0]).clip(0) * rows[:, 1]).sum())


def _number(content: bytes, place: int) -> int:
    return int.from_bytes(content[place : place + 4], "big")


def _boxes(file: BinaryIO, size: int, name: str) -> Iterator[bytes]:
    """Yield the contents of all boxes of a file but those with its sound."""
    place = num_boxes = 0
    while place + 8 <= size:
        file.seek(place)
        num_bytes, kind = struct.unpack(">I4s", file.read(8))
        head = 8
        if num_bytes == 1:
            num_bytes, head = int.from_bytes(file.read(8), "big"), 16
        elif not num_bytes:
            num_bytes = size - place
        if num_bytes < head:
            return
        num_boxes += 1
        num_held = min(num_bytes, size - place) - head
        if kind != b"mdat":
            if num_held > LARGEST_BOX or num_boxes > MOST_BOXES:
                raise Damaged(f"{name} has boxes that are too large or too many; fetch it again")
            yield kind + file.read(max(0, num_held))
        place += num_bytes
