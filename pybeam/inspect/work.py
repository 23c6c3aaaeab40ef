"""The work of a kernel or of a step, and the rates that makers of GPUs publish."""

from __future__ import annotations

from dataclasses import dataclass

# of a number
BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}
# the products of float32 without tensor cores, as a share of those of bfloat16, on both machines
FLOAT32_SHARE = 67 / 989


@dataclass(frozen=True)
class Machine:
    """The rates that its maker publishes, without sparsity."""

    bytes_per_us: float
    flop_per_us: float
    float8_flop_per_us: float
    multiprocessors: int = 132

    def multiplies(self, dtype: str) -> float:
        """Operations a microsecond in this dtype."""
        if dtype == "float8_e4m3fn":
            return self.float8_flop_per_us
        return self.flop_per_us * (FLOAT32_SHARE if dtype == "float32" else 1)


MACHINES = {
    "H100": Machine(3.35e6, 989e6, 1979e6),
    "H200": Machine(4.8e6, 989e6, 1979e6),
}


@dataclass(frozen=True)
class Work:
    """The bytes and products of a kernel or of a step.

    Attributes:
        num_bytes: read and written, weights once.
        flop: operations, two for a multiply-add.
    """

    num_bytes: float
    flop: float

    def us(self, machine: Machine, dtype: str, read: float = 1, multiply: float = 1) -> float:
        """Microseconds at these shares of the published rates."""
        rate = machine.multiplies(dtype) * multiply
        return max(self.num_bytes / machine.bytes_per_us / read, self.flop / rate)
