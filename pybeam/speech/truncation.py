"""Say whether a sound file ends before its end."""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO

from pybeam.speech.containers import Damaged, behind_tags

# bytes of a WAV file's samples; a size from here on stands for one that is not known
LARGEST_WAV = 0x7FFF0000
# bytes in which the last page of an Ogg file begins, and of the first frame of an MP3 file
NEAR, FRAME = 1 << 16, 256
# what encoders call the frame in which they say how many there are
MP3_HEADERS = (b"Xing", b"Info", b"VBRI")
OGG_PAGE, OGG_FLAGS, OGG_LAST = b"OggS", 5, 4
# seconds by which a stated length may be wrong: tracks of a film may end apart
TOLERANCE, EXACT_TOLERANCE = 1.0, 0.5
# formats whose files say how long they are; of others the length is a guess
EXACT_LENGTHS = {"flac", "mov"}


def why_cut(container: Any, stream: Any, source: BinaryIO, name: str, seconds: float) -> str | None:
    """Return why a file that is readable up to any place seems to be cut; None: nothing says so.

    Args:
        container, stream: the package av's.
        source: the file.
        name: of the file, for errors.
        seconds: of the sound that was read.

    Raises:
        Damaged: the file says for certain that it has more.
    """
    forms = set(container.format.name.split(","))
    if "ogg" in forms:
        return None if _ends(source) else "its last page is missing"
    stated = stream.duration and float(stream.duration * stream.time_base)
    if "matroska" in forms:
        stated = (container.duration or 0) / 1e6
    is_exact = bool(forms & EXACT_LENGTHS)
    if is_exact and stated and seconds < stated - EXACT_TOLERANCE:
        raise Damaged(
            f"{name} must have {stated:.1f} s, but ends after {seconds:.1f} s; fetch it again"
        )
    is_stated = "matroska" in forms or ("mp3" in forms and _has_length(source))
    if is_stated and stated and seconds < stated - TOLERANCE:
        return f"it says that it has {stated:.1f} s, but ends after {seconds:.1f} s"
    return None


def _has_length(source: BinaryIO) -> bool:
    """Whether the first frame of an MP3 file says how long it is. Otherwise its length is a guess."""
    first = _piece(source, behind_tags(source, "the file"))[:FRAME]
    return any(header in first for header in MP3_HEADERS)


def _ends(source: BinaryIO) -> bool:
    """Whether the last page of an Ogg file says that it is the last one."""
    piece = _piece(source, -NEAR)
    flags = piece.rfind(OGG_PAGE) + OGG_FLAGS
    # pages are at most so long, so that there is one
    return flags < len(piece) and bool(piece[flags] & OGG_LAST)


def check_wav(file: BinaryIO, name: str) -> None:
    """Refuse a WAV file, of any codec, that ends before its samples do. FFmpeg takes what is there."""
    kind = file.read(12)
    size = file.seek(0, os.SEEK_END)
    place = 12 if kind[:4] == b"RIFF" and kind[8:] == b"WAVE" else size
    while place < size:
        file.seek(place)
        chunk, num_bytes = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
        # chunks begin at even places
        place += 8 + num_bytes + num_bytes % 2
        if chunk == b"data":
            if size < place - num_bytes % 2 and num_bytes < LARGEST_WAV:
                raise Damaged(f"{name} is cut; fetch it again")
            break
    file.seek(0)


def _piece(source: BinaryIO, place: int) -> bytes:
    """Return bytes from a place on, or the last ones."""
    size = source.seek(0, os.SEEK_END)
    source.seek(place if place >= 0 else max(0, size + place))
    return source.read(NEAR)
