"""Estimate the time of a decoding step on a GPU: its limit, and with many, few or one kernel.

    python -m benchmarks.gpu.forecast

Nothing here is measured by us. Work follows from the sizes of a model; kernels are those that `make launches`
has counted; `MACHINES`, `NODE_US` and the others say what is published or assumed. The table goes to
forecast.json, in $OUT if that is set, else in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.journal import RESULTS, Journal, results_folder

# of a kernel within a CUDA graph: its launch, its first loads, and the wait for its last block. Spector et
# al. (Look Ma, No Bubbles!, 2025) measured 1.3 on an H100; the second number is an assumption
NODE_US = 1.3, 2.2
# of all blocks of one kernel waiting for each other; an assumption: an atomic in L2, and polling it
BARRIER_US = 0.7, 1.5
# shares of the published rates that kernels reach. Spector et al. read weights at 0.78 of an H100's rate in
# one kernel for a whole forward pass; the others are assumptions
READ_SHARE, ONE_KERNEL_READ_SHARE, MULTIPLY_SHARE = 0.9, 0.78, 0.8
BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}
# types of weights that the table is about
DTYPES = ("bfloat16", "float8_e4m3fn")
# parts of a decoder layer that wait for each other, and of the rest of a step: embedding, logits, selection,
# commit, and rows of the next step
PARTS_OF_LAYER, PARTS_OF_STEP = 8, 6
KERNELS_OF_STEP = PARTS_OF_STEP + 2


@dataclass(frozen=True)
class Machine:
    """The rates that its maker publishes, without sparsity."""

    bytes_per_us: float
    flop_per_us: float
    float8_flop_per_us: float


MACHINES = {
    "H100": Machine(3.35e6, 989e6, 1979e6),
    "H200": Machine(4.8e6, 989e6, 1979e6),
}


@dataclass(frozen=True)
class Network:
    """An encoder-decoder, as far as a step of its decoder goes."""

    layers: int
    width: int
    ffn: int
    vocabulary: int


NETWORKS = {
    "3 layers of 256": Network(3, 256, 1024, 8000),
    "6 layers of 1024": Network(6, 1024, 4096, 42000),
}
# sources, width of the beam
SHAPES = ((1, 5), (64, 5), (64, 50))
# tokens of a source, and of a hypothesis half-way
SOURCE_TOKENS, OWN_TOKENS = 30, 16


@dataclass(frozen=True)
class Work:
    """The bytes and products of a step."""

    num_bytes: float
    flop: float

    def us(self, machine: Machine, dtype: str, read: float = 1, multiply: float = 1) -> float:
        """Microseconds at these shares of the published rates."""
        rate = machine.flop_per_us if dtype == "bfloat16" else machine.float8_flop_per_us
        return max(self.num_bytes / machine.bytes_per_us / read, self.flop / rate / multiply)


def parts(network: Network, sources: float, beam: float, dtype: str) -> list[Work]:
    """The products and attentions of a step, one after another.

    Every row is counted with keys and values of its own. Rows of a beam share some, so this is the most.
    """
    rows, d = sources * beam, network.width
    # of a logit, and of a number in the cache
    kept = max(2, BYTES[dtype])

    def linear(num_weights: float) -> Work:
        return Work(num_weights * BYTES[dtype], 2 * rows * num_weights)

    def attention(num_keys: float, num_read: float) -> Work:
        return Work(2 * num_read * d * kept, 4 * num_keys * d)

    own, others = rows * OWN_TOKENS, rows * SOURCE_TOKENS
    layer = [
        linear(3 * d * d),
        attention(own, own),
        linear(d * d),
        linear(d * d),
        attention(others, sources * SOURCE_TOKENS),
        linear(d * d),
        linear(d * network.ffn),
        linear(d * network.ffn),
    ]
    assert len(layer) == PARTS_OF_LAYER
    # logits are written and read once
    selection = Work(2 * rows * network.vocabulary * kept, 0)
    return [*layer * network.layers, linear(d * network.vocabulary), selection]


def estimates(
    machine: Machine, network: Network, work: list[Work], dtype: str, counted: dict[str, int]
) -> Iterator[tuple[str, int, float, float]]:
    """Yield for each way its name, its kernels, and the least and the most microseconds of a step."""
    whole = Work(sum(one.num_bytes for one in work), sum(one.flop for one in work))
    limit = whole.us(machine, dtype)
    yield "limit", 0, limit, limit
    apart = sum(one.us(machine, dtype, READ_SHARE, MULTIPLY_SHARE) for one in work)
    for name, num in counted.items():
        yield name, num, apart + num * NODE_US[0], apart + num * NODE_US[1]
    # a kernel that goes on may load the next weights while its blocks wait for each other
    together = whole.us(machine, dtype, ONE_KERNEL_READ_SHARE, MULTIPLY_SHARE)
    slow = sum(one.us(machine, dtype, ONE_KERNEL_READ_SHARE, MULTIPLY_SHARE) for one in work)
    in_layers, barriers = network.layers * PARTS_OF_LAYER, PARTS_OF_STEP
    by_layer = network.layers + KERNELS_OF_STEP
    inner = in_layers - network.layers
    yield (
        "a kernel a layer",
        by_layer,
        together + by_layer * NODE_US[0] + inner * BARRIER_US[0],
        slow + by_layer * NODE_US[1] + inner * BARRIER_US[1],
    )
    yield (
        "a kernel a step",
        1,
        together + NODE_US[0] + (in_layers + barriers) * BARRIER_US[0],
        slow + NODE_US[1] + (in_layers + barriers) * BARRIER_US[1],
    )


def counted_kernels(layers: int, sources: int) -> dict[str, int]:
    """Kernels of a step of `fixed_beam` as `make launches` counted them, and their target."""
    row = counted_row(layers, sources)
    return {"kernels as counted": row["sum"], "kernels as aimed at": row["target"]}


def counted_row(layers: int, sources: int) -> dict:
    """What `make launches` counted for a step of `fixed_beam`."""
    rows = json.loads((RESULTS / "launches.json").read_text("utf-8"))["rows"]
    wanted = {"algorithm": "fixed_beam", "layers": layers, "sources": sources}
    [row] = [row for row in rows if row.items() >= wanted.items()]
    return row


def rows_of(gpu: str, name: str, shape: tuple[int, int], dtype: str) -> Iterator[dict]:
    """The estimates of one case; the limit comes first."""
    network, (sources, beam) = NETWORKS[name], shape
    counted = counted_kernels(network.layers, sources)
    work, limit = parts(network, sources, beam, dtype), 0.0
    for system, num, least, most in estimates(MACHINES[gpu], network, work, dtype, counted):
        limit = limit or least
        yield {
            "case": f"{gpu}, {name}, {sources} x {beam}, {dtype}",
            "system": system,
            "kernels": num,
            "estimate, least µs": round(least, 1),
            "estimate, most µs": round(most, 1),
            "share of the limit, %": round(200 * limit / (least + most)),
        }


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    journal = Journal(results_folder("cpu"), "forecast", ("case", "system"))
    rows = [
        row
        for gpu, name, shape, dtype in product(MACHINES, NETWORKS, SHAPES, DTYPES)
        for row in rows_of(gpu, name, shape, dtype)
    ]
    for row in rows:
        journal.add(row)
    journal.finish(rows)


if __name__ == "__main__":
    main()
