"""The forecast of each measured row: its limit, and the least and the most that it should take.

A row that takes more or less than its forecast shows where `forecast` is wrong, or where a kernel is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from benchmarks.gpu import forecast
from benchmarks.gpu.forecast import MACHINES, MULTIPLY_SHARE, NODE_US, READ_SHARE, Network, Work

# the rates that stand for a machine whose rates are not known
DEFAULT = "H100"
# the products of float32 without tensor cores, on both machines
FLOAT32_SHARE = 67 / 989


class Expected(NamedTuple):
    """Microseconds: at the published rates without any kernel to launch, and what they should be."""

    limit: float
    least: float
    most: float

    def columns(self, us: float) -> dict[str, float]:
        """Columns of a row that took so many microseconds."""
        return {
            "limit µs": significant(self.limit),
            "least µs": significant(self.least),
            "most µs": significant(self.most),
            "of limit": significant(self.limit / us),
            "times forecast": significant(2 * us / (self.least + self.most)),
        }

    def times(self, number: float) -> Expected:
        return Expected(*(number * us for us in self))


def machine_name() -> str:
    """The machine of `forecast` that this one is, or else the one that stands for it."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((known for known in MACHINES if known in name), DEFAULT)


def of_work(parts: list[Work], dtype: str, kernels: int) -> Expected:
    """Parts that wait for each other, in so many kernels."""
    machine = MACHINES[machine_name()]
    share = FLOAT32_SHARE if dtype == "float32" else 1
    whole = Work(sum(one.num_bytes for one in parts), sum(one.flop for one in parts) / share)
    limit = whole.us(machine, "bfloat16")
    apart = sum(
        Work(one.num_bytes, one.flop / share).us(machine, "bfloat16", READ_SHARE, MULTIPLY_SHARE)
        for one in parts
    )
    least, most = (apart + kernels * us for us in NODE_US)
    return Expected(limit, least, most)


def of_step(network: Network, sources: float, beam: float, dtype: str) -> Expected:
    """A step of `fixed_beam`, all of whose rows are alive."""
    parts = forecast.parts(network, sources, beam, dtype)
    return of_work(parts, dtype, kernels_of(network.layers)["sum"])


def of_phase(network: Network, sources: int, beam: int, dtype: str, phase: str) -> Expected:
    """A phase of that step; `phase` is a column of the counted launches."""
    *model, selection = forecast.parts(network, sources, beam, dtype)
    # written by one phase and read by the next
    logits = Work(selection.num_bytes / 2, 0)
    # what books need is a few numbers a row
    parts = {"model": [*model, logits], "select": [logits]}.get(
        phase, [Work(64 * sources * beam, 0)]
    )
    return of_work(parts, dtype, kernels_of(network.layers)[phase])


def kernels_of(layers: int) -> dict[str, int]:
    """Kernels of a step of `fixed_beam` by phase; other depths follow from the two that were counted."""
    few, many = (forecast.counted_row(num, 64) for num in (3, 6))
    phases = [name for name, value in few.items() if isinstance(value, int)]
    return {p: round(few[p] + (layers - 3) * (many[p] - few[p]) / 3) for p in phases}


def network_of(config) -> Network:
    """The sizes of a built-in encoder-decoder."""
    return Network(
        config.num_decoder_layers, config.hidden_size, config.decoder_inner_size, config.vocab_size
    )


def significant(number: float) -> float:
    """Three digits of it."""
    return float(f"{number:.3g}")
