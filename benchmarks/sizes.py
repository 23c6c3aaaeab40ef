"""How much of whole translations is measured, by device: what fits into the time of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# widths up to this one are narrow
NARROW = 10
WMT19_BIG = dict(width=1024, ffn=4096, encoder_layers=6, decoder_layers=6, vocabulary=42000)


@dataclass(frozen=True)
class Sizes:
    """Pairs are for narrow and for wide beams; None takes all lines."""

    dtype: str
    repeats: int
    # in the order in which they are measured
    networks: tuple[str, ...]
    lines: Mapping[str, tuple[int | None, int | None]]
    # fewer than lines, or a schedule has nothing to refill with
    n: Mapping[str, tuple[int, int]]
    step_lengths: tuple[int, ...]
    step_n: int
    num_requests: int
    num_memory_lines: int = 16
    latency_of: tuple[str, ...] = ("example", "widened")
    # arrivals as shares of the saturated throughput
    loads: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)
    widths: tuple[int, ...] = (5, 50)
    widened: Mapping[str, int] = field(default_factory=lambda: WMT19_BIG)

    def lines_of(self, network: str, width: int) -> int | None:
        return self.lines[network][width > NARROW]

    def n_of(self, network: str, width: int) -> int:
        return self.n[network][width > NARROW]


CPU = Sizes(
    dtype="float32",
    repeats=1,
    networks=("example", "widened"),
    lines={"example": (694, 128), "widened": (64, 16)},
    n={"example": (64, 64), "widened": (16, 4)},
    step_lengths=(8, 40, 72, 104, 136, 168),
    step_n=16,
    num_requests=400,
    latency_of=("example",),
)
CUDA = Sizes(
    dtype="bfloat16",
    repeats=3,
    networks=("widened", "example"),
    lines={"example": (None, None), "widened": (None, 256)},
    n={"example": (128, 64), "widened": (128, 64)},
    step_lengths=(8, 40, 72, 104),
    step_n=64,
    num_requests=2000,
)
TINY = Sizes(
    dtype="float32",
    repeats=2,
    networks=("example", "widened"),
    lines={"example": (4, 3), "widened": (2, 2)},
    n={"example": (2, 2), "widened": (2, 2)},
    step_lengths=(2, 4, 6),
    step_n=2,
    num_requests=4,
    num_memory_lines=2,
    loads=(0.5,),
    widths=(2, 12),
    widened=dict(width=512, ffn=2048, encoder_layers=3, decoder_layers=3, vocabulary=8001),
)
