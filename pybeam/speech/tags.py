"""ID3 tags of sound files, which FFmpeg would unpack: a small one may become gigabytes."""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from pybeam.speech.containers import Damaged

HEAD = 10
MOST_TAGS = 16
# bytes of a tag between frames of AAC, and of a piece of a file in which it is looked for
LARGEST_INNER, PIECE = 1 << 16, 1 << 20
TAG = re.compile(rb"ID3[\x02-\x04].{2}[\0-\x7f]{4}", re.DOTALL)


def behind_tags(file: BinaryIO, name: str) -> int:
    """Return the place behind the tags with which a file begins.

    Raises:
        Damaged: they are too many.
    """
    place = 0
    for _ in range(MOST_TAGS):
        file.seek(place)
        head = file.read(HEAD)
        if head[:3] != b"ID3" or len(head) < HEAD:
            return place
        place += HEAD + _size(head) + (HEAD if head[5] & 0x10 else 0)
    raise Damaged(f"{name} must have at most {MOST_TAGS} ID3 tags; fetch it again")


def is_adts(file: BinaryIO, place: int, name: str) -> bool:
    """Whether frames of AAC stand at a place of a file.

    Raises:
        Damaged: they do, and a large tag is between them.
    """
    file.seek(place)
    sync = file.read(2)
    if len(sync) < 2 or sync[0] != 0xFF or sync[1] & 0xF6 != 0xF0:
        return False
    file.seek(place)
    before = b""
    while piece := file.read(PIECE):
        piece = before + piece
        if any(_size(one[0]) > LARGEST_INNER for one in TAG.finditer(piece)):
            raise Damaged(
                f"{name} must have ID3 tags of at most {LARGEST_INNER} bytes in its sound"
            )
        before = piece[1 - HEAD :]
    return True


def _size(head: bytes) -> int:
    """Return how many bytes follow the head of a tag: four times seven bits say it."""
    return int("".join(f"{byte & 0x7F:07b}" for byte in head[6:HEAD]), 2)


class Bytes:
    """A file from a place on, without its name, from which FFmpeg would guess, and without `write`."""

    def __init__(self, file: BinaryIO, begin: int) -> None:
        self._file, self._begin = file, begin
        self.read = file.read
        file.seek(begin)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as files do."""
        if whence == os.SEEK_SET:
            offset = max(0, offset) + self._begin
        return self._file.seek(offset, whence) - self._begin

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell() - self._begin
