"""Recordings of requests: seconds count as they are decoded, and no more are when the request is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, cast

from torch import Tensor

from pybeam.speech import SoundFile
from pybeam.speech.containers import Damaged


class RequestSound(SoundFile):
    """A `SoundFile` that a request reads.

    A thread cannot be cancelled, and would read on when the request's client has gone.

    Args:
        file: of the recording.
        sound: reads its blocks.
        count: is told of new seconds in the thread that reads; a second reading has none.
    """

    def __init__(self, file: BinaryIO, sound: SoundFile, count: Callable[[float], None]) -> None:
        super().__init__(file, sound.sampling_rate)
        self._sound, self._count = sound, count
        self._num_counted, self._is_over = 0, False

    def leave(self) -> None:
        """End readings at their next block."""
        self._is_over = True

    def blocks(self) -> Iterator[Tensor]:
        num, decoded = 0, cast(Generator[Tensor, None, None], self._sound.blocks())
        # upon which a process that decodes ends, too
        with contextlib.closing(decoded) as blocks:
            for block in blocks:
                if self._is_over:
                    raise Damaged("the request of this recording is over")
                num += len(block)
                if num > self._num_counted:
                    self._count((num - self._num_counted) / self.sampling_rate)
                    self._num_counted = num
                yield block
