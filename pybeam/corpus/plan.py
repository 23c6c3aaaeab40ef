"""The time model by which `--processes auto` chooses how cores are used.

A process with T threads takes ``s + (1 - s) / T`` of the time that one thread takes for a part, where s
is the share of a step that only one thread works on. P processes decode ``ceil(parts / P)`` rounds of
parts. Loading is the same in every case, because the weights are loaded once. So with C cores the choice is
the P that makes ``ceil(parts / P) * (s + (1 - s) * P / C)`` smallest.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

# benchmarks/corpus_runs.py measures it
SERIAL_SHARE = 0.1


class Plan(NamedTuple):
    """So many processes of so many threads."""

    processes: int
    threads: int


def relative_seconds(num_parts: int, plan: Plan, serial_share: float = SERIAL_SHARE) -> float:
    """Return how long so many parts take, in units of one part on one thread."""
    rounds = math.ceil(num_parts / plan.processes)
    return rounds * (serial_share + (1 - serial_share) / plan.threads)


def best_plan(num_parts: int, cores: int) -> Plan:
    """Return the fastest use of the cores; of equal ones that with the fewest processes."""
    plans = [Plan(num, cores // num) for num in range(1, cores + 1)]
    return min(plans, key=lambda plan: relative_seconds(num_parts, plan))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
