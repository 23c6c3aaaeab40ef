"""Recordings of strangers, each decoded in a process of its own, whose crash costs one request."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import signal
import wave
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pybeam.platforms.system import can_fork
from pybeam.serving.fork_server import ForkServer
from pybeam.speech.containers import Damaged
from pybeam.speech.sound import SoundFile

with contextlib.suppress(ImportError):  # not on Windows
    import resource

log = logging.getLogger("pybeam.serving")

# beside what the process has when it begins; FFmpeg needs a few MiB
MEMORY = 256 << 20
# CPU time: so much at least, and as much for each second that a recording may have; decoders take a hundredth
CPU_SECONDS, CPU_SHARE = 10.0, 0.05
# until the next seconds of sound are there, by the clock
BLOCK_SECONDS = 20.0
# of a message; a block of two channels at 96 kHz has 8 MB
LARGEST_MESSAGE = 64 << 20
# the kinds of messages
SAMPLES, WARNING, ERROR, END = b"s", b"w", b"e", b"."


class SoundProcesses:
    """Makes a process for each reading of a recording.

    They are copies of this process as it was at `start`, which is best called before there are models and
    keys; they have those of its environment. Each has one file and one socket, and opens nothing else; Linux
    bounds its memory and its time.
    """

    def __init__(self) -> None:
        self._server = ForkServer(_decode)

    @staticmethod
    def are_possible() -> bool:
        """Whether this system bounds processes so, and the package av is there, which could crash."""
        return can_fork() and importlib.util.find_spec("av") is not None

    def start(self) -> None:
        """Begin the process that the others are copies of."""
        # modules that are imported late and FFmpeg's tables are then there, and no copy makes them anew
        content = io.BytesIO()
        with wave.open(content, "wb") as file:
            file.setparams((2, 2, 48000, 0, "NONE", "not compressed"))
            file.writeframes(bytes(48000))
        SoundFile(content, 16000).read()
        self._server.start()

    def stop(self) -> None:
        """End all processes."""
        self._server.stop()

    def sound(self, file: BinaryIO, sampling_rate: int, *, max_seconds: float) -> ForkedSound:
        """Return a recording whose blocks another process decodes; the arguments are those of `SoundFile`."""
        return ForkedSound(self._server, file, sampling_rate, max_seconds)


class ForkedSound(SoundFile):
    """A `SoundFile` of which another process reads the blocks, each time a new one."""

    def __init__(
        self, server: ForkServer, file: BinaryIO, sampling_rate: int, max_seconds: float
    ) -> None:
        super().__init__(file, sampling_rate, max_seconds=max_seconds)
        self._server, self._file_number = server, os.dup(file.fileno())
        # as late as that: a thread may still read when the request is over, and the number is then another's
        weakref.finalize(self, os.close, self._file_number)

    def blocks(self) -> Iterator[Tensor]:
        # opened anew, so that the place in it is not that of a process that still ends
        with open(f"/proc/self/fd/{self._file_number}", "rb") as file:
            connection, pid = self._server.fork(0)
            with contextlib.closing(connection):
                reduction.send_handle(connection, file.fileno(), pid)
                yield from self._received(connection)

    def _received(self, connection: Connection) -> Iterator[Tensor]:
        asked = {"sampling_rate": self.sampling_rate, "max_seconds": self._max_seconds}
        for kind, content in _messages(connection, asked, self.name):
            if kind == SAMPLES:
                # which torch may write to
                yield torch.frombuffer(bytearray(content), dtype=torch.float32)
            elif kind == WARNING and self._warn is not None:
                self._warn(content.decode())
            elif kind == ERROR:
                raise Damaged(content.decode(errors="replace"))
        self._warn = None


def _messages(
    connection: Connection, asked: dict[str, Any], name: str
) -> Iterator[tuple[bytes, bytes]]:
    """Ask a process for a recording, and yield what it says until it ends. Nothing of this is unpickled."""
    try:
        connection.send_bytes(json.dumps(asked).encode())
        # it ends itself before this
        while connection.poll(2 * BLOCK_SECONDS):
            message = connection.recv_bytes(LARGEST_MESSAGE)
            if message[:1] == END:
                return
            yield message[:1], message[1:]
    except (EOFError, OSError):
        pass
    log.warning("a process that decoded a recording has ended before the recording")
    raise Damaged(
        f"{name} cannot be read as sound: its decoder crashed, or needed more than {MEMORY >> 20} MiB or "
        f"{BLOCK_SECONDS:g} s for its next seconds"
    )


def _decode(number: int, connection: Connection) -> None:
    """Send the blocks of the recording that is asked for. This is the life of a process."""
    # the other side wants no more
    with contextlib.suppress(EOFError, ConnectionError):
        handle = reduction.recv_handle(connection)
        asked = json.loads(connection.recv_bytes())
        with os.fdopen(handle, "rb") as file:
            _bound(asked["max_seconds"])
            for kind, content in _said(file, connection, **asked):
                connection.send_bytes(kind + content)


def _said(
    file: BinaryIO, connection: Connection, sampling_rate: int, max_seconds: float
) -> Iterator[tuple[bytes, bytes]]:
    def warn(text: str) -> None:
        connection.send_bytes(WARNING + text.encode())

    blocks = SoundFile(file, sampling_rate, max_seconds=max_seconds, warn=warn).blocks()
    try:
        while (block := _in_time(blocks)) is not None:
            yield SAMPLES, block.numpy().tobytes()
        yield END, b""
    except (ImportError, OSError, ValueError) as error:
        yield ERROR, str(error).encode()


def _in_time(blocks: Iterator[Tensor]) -> Tensor | None:
    """Return the next block; None: there is none. The process ends if that takes too long."""
    signal.setitimer(signal.ITIMER_REAL, BLOCK_SECONDS)
    try:
        return next(blocks, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _bound(max_seconds: float) -> None:
    """Let this process take so much memory and time, and open no file and no connection."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bounds = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + MEMORY,
        resource.RLIMIT_CPU: round(CPU_SECONDS + CPU_SHARE * max_seconds),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
    }
    for name, most in bounds.items():
        resource.setrlimit(name, (most, most))
