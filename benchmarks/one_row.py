"""The cost of a step of one row, and how much of it neither arithmetic nor reading memory explains.

A step multiplies one row by every weight of the decoder and reads the keys and values of the tokens
before it and of the source:

    bytes       = weights as they are stored + 4 · 2 · layers · d · (t + E)
    multiplies  = number of weights + 2 · layers · d · (t + E)
    explained   = max(bytes / bandwidth, multiplies / rate)
    unexplained = 1 - explained / step

t is the mean number of tokens before it, E the length of the source. The bandwidth is that of
`torch.amax` over as many bytes, again and again, so that they lie in the same cache; the rate that of
torch's product of two square matrices of the same type.
"""

from __future__ import annotations

from torch import Tensor

import pybeam
from benchmarks.meter import GIGA
from benchmarks.setup import Setup
from benchmarks.step_time import StepTime
from benchmarks.tasks import Task
from benchmarks.translation import Decoding, flops_of
from pybeam.cli.profile import random_sources
from pybeam.inspect import limits
from pybeam.models.base import Model

CASE = "one-row-step"
DTYPES = ("float32", "bfloat16", "int8")
SOURCE_LENGTH = 32
# a step is what outputs of these lengths differ by
LENGTHS = (8, 72)
# of which the fastest counts
REPEATS, CALLS = 5, 10


def tasks(setup: Setup) -> list[list[Task]]:
    repeats = 1 if setup.is_tiny else REPEATS
    return [
        [
            Task(
                CASE,
                f"pybeam {dtype}",
                OneRow(setup, dtype),
                repeats,
                threads,
                dict(threads=threads),
            )
            for dtype in DTYPES
        ]
        for threads in dict.fromkeys((setup.threads, 1))
    ]


class OneRow:
    """The turns of one type; the fastest of all counts."""

    def __init__(self, setup: Setup, dtype: str) -> None:
        self._setup, self._dtype = setup, dtype
        self._steps: StepTime | None = None
        self._bandwidth = self._rate = 0.0

    def __call__(self) -> dict:
        model = self._setup.networks.ours("example", self._dtype)
        if self._steps is None:
            sources = random_sources(model, 1, (SOURCE_LENGTH, SOURCE_LENGTH))
            self._steps = StepTime(lambda t: _greedy(model, t), lambda: sources, 1, LENGTHS)
        for _ in range(1 if self._setup.is_tiny else CALLS):
            [step_ms] = self._steps()["step_ms"]
        weights = weight_bytes(model)
        cells = 2 * model.config.num_decoder_layers * model.config.hidden_size
        cells *= sum(LENGTHS) // 2 + SOURCE_LENGTH
        multiplies = flops_of(model.config)[0] // 2 + cells
        num_bytes = weights + 4 * cells
        self._bandwidth = max(self._bandwidth, limits.bandwidth(num_bytes))
        self._rate = max(self._rate, limits.multiply_rate(self._dtype))
        explained = max(num_bytes / self._bandwidth, multiplies / self._rate)
        return {
            "weights MB": weights / 1e6,
            "bytes MB": num_bytes / 1e6,
            "multiplies M": multiplies / 1e6,
            "GB/s": self._bandwidth / GIGA,
            "Gmultiplies/s": self._rate / GIGA,
            "explained ms": 1e3 * explained,
            "ms/step": step_ms,
            "unexplained %": 100 * (1 - 1e3 * explained / step_ms),
        }


def _greedy(model: Model, length: int) -> Decoding:
    algorithm = pybeam.greedy(min_length=length - 1, max_length=length)
    return Decoding(model, algorithm, pybeam.Batch(1))


def weight_bytes(model: Model) -> int:
    """The bytes of all weights that a step multiplies by, biases included."""
    products = [model.output, *(part for layer in model.decoder.layers for part in layer.linears)]
    return sum(
        value.nbytes
        for product in products
        for value in vars(product).values()
        if isinstance(value, Tensor)
    )
