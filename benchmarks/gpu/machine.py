"""The machine's own limits: copy rate, L2 read rate, latency of a graph's nodes."""

from __future__ import annotations

import torch

from benchmarks.journal import Journal
from benchmarks.kernels.clock import median_us


def measure(device: torch.device, journal: Journal, is_tiny: bool) -> None:
    # Rates divide by this one, so a slow first copy must not round to zero.
    copied = copy_rate(device, 1 << 10 if is_tiny else 2 << 30)
    journal.machine["copy_gb_per_s"] = _significant(copied)
    for num_nodes in (1, 10, 100):
        journal.machine[f"node_us_of_{num_nodes}"] = _significant(node_us(device, num_nodes))
    for megabytes in (5, 30, 200):
        rate = read_rate(device, 1 << 10 if is_tiny else megabytes << 20)
        journal.machine[f"read_{megabytes}_mb_gb_per_s"] = _significant(rate)
    journal.save()
    for name, value in journal.machine.items():
        journal.say(f"{name}={value}")


def copy_rate(device: torch.device, num_bytes: int) -> float:
    """GB/s of a copy, counting bytes read and bytes written."""
    source, target = (torch.ones(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * num_bytes / median_us([lambda: target.copy_(source)] * 2, device) / 1e3


def node_us(device: torch.device, num_nodes: int) -> float:
    """Microseconds per node of a graph of kernels that do nothing."""

    def nothing() -> None:
        if device.type == "cuda":
            torch.cuda._sleep(1)

    return median_us([nothing] * num_nodes, device)


def read_rate(device: torch.device, num_bytes: int) -> float:
    """GB/s of reading the same numbers again and again, with torch's sum."""
    numbers = torch.ones(num_bytes // 4, device=device)
    return num_bytes / median_us([numbers.sum] * 20, device) / 1e3


def _significant(number: float) -> float:
    return float(f"{number:.4g}")
