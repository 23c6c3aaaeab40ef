"""Threads after `fork`: a child has none of those that OpenMP counts on, and would wait for them for ever."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_TASKS = Path("/proc/self/task")
# whether the process had several threads when it was forked
_had_threads = False


def _look() -> None:
    global _had_threads
    try:
        _had_threads = len(os.listdir(_TASKS)) > 1
    except OSError:  # only Linux tells
        _had_threads = True


def _keep_one() -> None:
    # a process that never had a second thread can still start a team of its own
    if _had_threads and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def watch_forks() -> None:
    """From now on, children that are forked from a process with threads compute on one.

    Results are the same. More threads need a process that was started afresh ("spawn").
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_look, after_in_child=_keep_one)
