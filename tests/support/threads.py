"""Numbers of threads: results that are equal to the last bit must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

THREAD_COUNTS = (1, 2, 3, 5)


def every_thread_count() -> Iterator[int]:
    """Set each number of threads in turn."""
    for num_threads in THREAD_COUNTS:
        torch.set_num_threads(num_threads)
        yield num_threads
