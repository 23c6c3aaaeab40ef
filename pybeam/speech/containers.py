"""Open sound files of a few kinds with FFmpeg's libraries, which then read their bytes and nothing else.

Tags and tables that would make FFmpeg take memory beyond all bounds are looked at before.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import numpy as np

# what FFmpeg calls the containers that are opened; others may name files and hosts of their own
CONTAINERS = ["amr", "au", "caf", "flac", "matroska", "mp3", "ogg", "w64", "wav"]
KINDS = "WAV, W64, AU, CAF, FLAC, MP3, AAC, AMR, Ogg, MP4, MOV, Matroska or WebM"
# and the decoders of sound
CODECS = (
    "aac ac3 adpcm_ima_wav adpcm_ms alac amrnb amrwb eac3 flac libopus mp2 mp2float mp3 mp3float "
    "opus pcm_alaw pcm_f32be pcm_f32le pcm_f64be pcm_f64le pcm_mulaw pcm_s16be pcm_s16le "
    "pcm_s24be pcm_s24le pcm_s32be pcm_s32le pcm_s8 pcm_u8 vorbis"
).split()
OPTIONS = {
    "codec_whitelist": ",".join(CODECS),
    # the bytes come from Python, which is no protocol
    "protocol_whitelist": "none",
    "enable_drefs": "0",
    "use_absolute_path": "0",
    "max_streams": "64",
}
# Hz, and channels; a frame of few samples at 1 Hz would become many
RATES, MOST_CHANNELS = range(1000, 768_001), 64
# ID3 tags, which FFmpeg would unpack: a small one may become gigabytes; bytes of the head of each
MOST_TAGS, HEAD = 16, 10
# bytes of a tag between frames of AAC, and of a piece of a file in which it is looked for
LARGEST_INNER, PIECE = 1 << 16, 1 << 20
TAG = re.compile(rb"ID3[\x02-\x04].{2}[\0-\x7f]{4}", re.DOTALL)
# boxes of MP4 and QuickTime files, whose tables FFmpeg would make as long as they say
FIRST_KINDS = {b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"}
TABLES = re.compile(rb"trak|stsz|stz2|stsc|stco|co64|stts|elst|trun|cmov")
# samples that a track, or all fragments, may list: two days of AAC
MOST_SAMPLES = 1 << 23
# boxes of a file, and bytes of one that is not its sound
MOST_BOXES, LARGEST_BOX = 1 << 20, 1 << 28
SINGLE = b"\0\0\0\1"


class Damaged(ValueError):
    """Sound that cannot be read, with a message for the user."""


def opened(av: Any, file: BinaryIO, name: str) -> Any:
    """Return the package av's container of what a file holds.

    Its kind is looked at first, since what FFmpeg does with some kinds has no bounds.

    Raises:
        Damaged: it is none of `KINDS`, or damaged.
    """

    def refuse(*asked: Any) -> NoReturn:
        raise Damaged(f"{name} must hold its own sound, but refers to {asked[0]!r}")

    begin, containers = 0, ["mov"]
    if not is_film(file, name):
        begin = behind_tags(file, name)
        containers = ["aac"] if is_adts(file, begin, name) else CONTAINERS
    options = OPTIONS | {"format_whitelist": ",".join(containers)}
    content = Bytes(file, begin)
    try:
        return av.open(
            content, "r", metadata_errors="ignore", container_options=options, io_open=refuse
        )
    except Damaged:
        raise
    except (av.FFmpegError, ValueError) as error:
        raise Damaged(
            f"{name} cannot be read as sound: {reason_of(error)}; it must be {KINDS}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return what FFmpeg says."""
    return getattr(error, "strerror", None) or str(error)


def sound_of(container: Any, name: str) -> Any:
    """Return the first sound track of a container.

    Raises:
        Damaged: there is none, or its codec or its form is not among those that are decoded.
    """
    if not container.streams.audio:
        raise Damaged(f"{name} has no sound")
    stream = container.streams.audio[0]
    codec = stream.codec_context and stream.codec_context.name
    if codec not in CODECS:
        raise Damaged(
            f"{name} must have sound of a codec that pybeam decodes, but has {codec or 'an unknown one'}; "
            "convert it: `ffmpeg -i in -c:a flac out.flac`"
        )
    return stream


def check_form(frame: Any, name: str) -> None:
    """Refuse sound whose rate or channels would take more memory than its seconds say."""
    num_channels = len(frame.layout.channels)
    if frame.sample_rate not in RATES or num_channels > MOST_CHANNELS:
        raise Damaged(
            f"{name} must have {RATES[0]} to {RATES[-1]} Hz and at most {MOST_CHANNELS} channels, but has "
            f"{frame.sample_rate} Hz and {num_channels}"
        )


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
    """Return how many samples `num_chunks` chunks have, by a table of runs of chunks."""
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
