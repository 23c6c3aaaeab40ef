"""Memory and forks: what a decode asks of a system. Programs that load no torch ask `system`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np
import torch

# whether the process had several threads when it was forked
_had_threads = False


def at_fork(in_copy: Callable[[], None], before: Callable[[], None] = lambda: None) -> None:
    """From now on, call these before `os.fork` copies this process, and in each copy."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=in_copy)


def watch_forks() -> None:
    """Let copies of a process with threads compute on one thread: OpenMP would wait for the others."""
    at_fork(_keep_one, _look)


def _look() -> None:
    global _had_threads
    try:
        _had_threads = len(os.listdir("/proc/self/task")) > 1
    except OSError:  # only Linux tells
        _had_threads = True


def _keep_one() -> None:
    # a process that never had a second thread can still start a team of its own
    if _had_threads and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def huge_pages(size: int, page: int) -> tuple[mmap.mmap, int] | None:
    """Return new memory and the place in it where so many bytes in huge pages begin; None: there are none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        # a page more, so that arrays begin where a page does
        pages = mmap.mmap(-1, size + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = -np.frombuffer(pages, np.uint8).ctypes.data % page
        # one at the end would hold little
        pages.madvise(mmap.MADV_HUGEPAGE, first, size // page * page)
    except OSError:
        return None  # a kernel without them, or a limit of memory, which `torch.empty` says better
    return pages, first
