"""The machine's own limits: copy rate, L2 read rate, latency of a graph's nodes."""

from __future__ import annotations

import torch

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.timing import Timer


def measure(timer: Timer, journal: Journal, tiny: bool) -> None:
    # Rates divide by this one, so a slow first copy must not round to zero.
    journal.machine["copy_gb_per_s"] = _significant(copy_rate(timer, 1 << 10 if tiny else 2 << 30))
    for num_nodes in (1, 10, 100):
        journal.machine[f"node_us_of_{num_nodes}"] = _significant(node_us(timer, num_nodes))
    for megabytes in (5, 30, 200):
        rate = read_rate(timer, 1 << 10 if tiny else megabytes << 20)
        journal.machine[f"read_{megabytes}_mb_gb_per_s"] = _significant(rate)
    journal.save()
    for name, value in journal.machine.items():
        journal.say(f"{name}={value}")


def copy_rate(timer: Timer, num_bytes: int) -> float:
    """GB/s of a copy, counting bytes read and bytes written."""
    source, target = (
        torch.ones(num_bytes, dtype=torch.uint8, device=timer.device) for _ in range(2)
    )
    us = timer.graphed_us([lambda: target.copy_(source)] * 2)
    return 2 * num_bytes / us / 1e3


def node_us(timer: Timer, num_nodes: int) -> float:
    """Microseconds per node of a graph of kernels that do nothing."""

    def nothing() -> None:
        if timer.device.type == "cuda":
            torch.cuda._sleep(1)

    return timer.graphed_us([nothing] * num_nodes)


def read_rate(timer: Timer, num_bytes: int) -> float:
    """GB/s of reading the same numbers again and again, with torch's sum."""
    numbers = torch.ones(num_bytes // 4, device=timer.device)
    us = timer.graphed_us([numbers.sum] * 20)
    return num_bytes / us / 1e3


def _significant(number: float) -> float:
    return float(f"{number:.4g}")
