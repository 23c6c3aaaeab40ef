"""Say whether a sound file ends before its end, for formats that are readable up to any place."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, BinaryIO

# bytes in which the last page of an Ogg file begins, and of the first frame of an MP3 file
NEAR, FRAME = 1 << 16, 256
# what encoders call the frame in which they say how many there are
MP3_HEADERS = (b"Xing", b"Info", b"VBRI")
OGG_PAGE, OGG_FLAGS, OGG_LAST = b"OggS", 5, 4
# seconds by which a stated length may be wrong: tracks of a film may end apart
TOLERANCE = 1.0


def why_cut(container: Any, stream: Any, source: str | BinaryIO, seconds: float) -> str | None:
    """Return why a file of `seconds` that was read seems to be cut; None: nothing says so.

    Args:
        container, stream: the package av's.
        source: the file's name, or a stream that can seek.
        seconds: of the sound that was read.
    """
    forms = set(container.format.name.split(","))
    if "ogg" in forms:
        return None if _ends(source) else "its last page is missing"
    expected = None
    if "mp3" in forms and _has_length(source):
        expected = stream.duration and float(stream.duration * stream.time_base)
    elif "matroska" in forms:
        expected = (container.duration or 0) / 1e6
    if expected and seconds < expected - TOLERANCE:
        return f"it says that it has {expected:.1f} s, but ends after {seconds:.1f} s"
    return None


def _has_length(source: str | BinaryIO) -> bool:
    """Whether the first frame of an MP3 file says how long it is. Otherwise its length is a guess."""
    kind, place = _piece(source, 0), 0
    if kind[:3] == b"ID3":
        # tags have a length of four times seven bits, and ten bytes before it
        place = 10 + int("".join(f"{byte:07b}" for byte in kind[6:10]), 2)
    first = _piece(source, place)[:FRAME]
    return any(header in first for header in MP3_HEADERS)


def _ends(source: str | BinaryIO) -> bool:
    """Whether the last page of an Ogg file says that it is the last one."""
    piece = _piece(source, -NEAR)
    flags = piece.rfind(OGG_PAGE) + OGG_FLAGS
    # pages are at most so long, so that there is one
    return flags < len(piece) and bool(piece[flags] & OGG_LAST)


def _piece(source: str | BinaryIO, place: int) -> bytes:
    """Return bytes from a place on, or the last ones."""
    with open(source, "rb") if isinstance(source, str) else nullcontext(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(place if place >= 0 else max(0, size + place))
        return file.read(NEAR)
