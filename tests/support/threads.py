"""Numbers of threads that what is equal to the last bit must not hang on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

THREAD_COUNTS = (1, 2, 3, 5)


def every_thread_count() -> Iterator[int]:
    """Sets each in turn; after the test the number is again that of the next one."""
    for num_threads in THREAD_COUNTS:
        torch.set_num_threads(num_threads)
        yield num_threads
