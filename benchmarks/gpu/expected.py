"""The forecast of each measured row: its limit, and what it should take.

A row that takes more or less than its forecast shows where `forecast` is wrong, or where a kernel is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.gpu import forecast
from benchmarks.gpu.forecast import ALONE_US, BYTES, GAP_US, MACHINES, Machine, Network, Part
from pybeam.inspect import gpu_kernels
from pybeam.inspect.work import Work, whole

# the rates that stand for a machine whose rates are not known
DEFAULT = "H200"


class Expected(NamedTuple):
    """Microseconds: at the published rates without any kernel to launch, and what they should be."""

    limit: float
    forecast: float

    def columns(self, us: float) -> dict[str, float]:
        """Columns of a row that took so many microseconds."""
        return {
            "limit µs": significant(self.limit),
            "forecast µs": significant(self.forecast),
            "of limit": significant(self.limit / us),
            "times forecast": significant(us / self.forecast),
        }

    def times(self, number: float) -> Expected:
        return Expected(*(number * us for us in self))


def machine() -> Machine:
    """That of `forecast` which this one is, or else the one that stands for it."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return MACHINES[next((known for known in MACHINES if known in name), DEFAULT)]


def of_work(work: Work, dtype: str, role: str = "norm") -> Expected:
    """A kernel that stands alone in a graph, and is no more than its work."""
    us = Part(role, "", work).us(machine(), dtype)
    return Expected(work.us(machine(), dtype), us + GAP_US)


def of_step(network: Network, sources: float, beam: float, dtype: str) -> Expected:
    """A step of `fixed_beam`, all of whose rows are alive."""
    return _of_parts(network, (sources, beam, dtype), lambda part: True)


def of_phase(network: Network, sources: int, beam: int, dtype: str, phase: str) -> Expected:
    """A phase of that step, in a graph of its own; `phase` is a column of the counted launches."""
    roles = {"model": {"product", "attention", "norm"}, "select": {"select"}}.get(phase, set())
    sizes = sources, beam, dtype
    own = _of_parts(network, sizes, lambda part: part.role in roles, phase)
    return own._replace(forecast=own.forecast + ALONE_US)


def _of_parts(
    network: Network, sizes: tuple, belongs: Callable[[Part], bool], phase: str | None = None
) -> Expected:
    sources, _, dtype = sizes
    limit = whole([part for part in forecast.parts(network, *sizes) if belongs(part)])
    launched = [part for part in forecast.parts(network, *sizes, launched=True) if belongs(part)]
    few = sources < 2 and BYTES[dtype] > 1
    counted = forecast.counted_kernels(network, few, phase)
    books = forecast.books_us(network, sources)
    us = forecast.by_role(machine(), launched, dtype, counted, books)
    return Expected(limit.us(machine(), dtype), sum(us.values()))


def network_of(config) -> Network:
    """The sizes of a built-in transformer."""
    network = gpu_kernels.network_of(config, "bfloat16")
    assert network is not None
    return network


def significant(number: float) -> float:
    """Three digits of it."""
    return float(f"{number:.3g}")
