"""Estimate the time of a decoding step on a GPU, and of each of its kernels, beside the limit.

    python -m benchmarks.gpu.forecast

Work follows from the sizes of a model, and kernels are those that `make launches` has counted. The time of a
kernel beside its work was measured on one H200: the constants below, from a run of 2026-11-26 with commit
2fc61e54e7, driver 580 and CUDA 13.0. An H100 with commit d2bdadad gave EARLY_US. Kernels that keep the
books take the time of their machine code (`code_time`). A step in one launch is estimated by `layers_time`.
The table goes to forecast.json, in $OUT if that is set, else in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from statistics import mean
from typing import Any

from benchmarks import decoders
from benchmarks.gpu.roles import START_US
from benchmarks.journal import RESULTS, Journal, results_folder
from pybeam.engine.buckets import bucket
from pybeam.inspect import work
from pybeam.inspect.gpu_kernels import ROLES, role_of
from pybeam.inspect.work import (
    BYTES,
    MACHINES,
    UNSHARED_TOKENS,
    Machine,
    Network,
    StepRows,
    whole,
)

# shares of the published rates that are reached: torch's sum over 200 MB reads at 0.87, and cuBLAS
# multiplies 4,096 rows at 0.75
READ_SHARE, MULTIPLY_SHARE = 0.87, 0.75
# between the end of a kernel and the start of the next one in a CUDA graph: of cuBLAS's, of one of our own,
# which begins early
GAP_US, EARLY_US = 0.3, -0.35
# of a graph that is replayed alone, before its first kernel and behind its last one
ALONE_US = 3.0
# of a kernel beside its work, from its first instruction to its last: loads that wait for one another. The
# product is cuBLAS's; `FEW_US` is that of our own for at most `FEW_ROWS`, four times as many at `FEW_INPUTS`
KERNEL_US = {
    "product": 2.7,
    "attention": 2.0,
    "norm": 1.7,
    "select": 11.5,
    "books": 2.5,
    "other": 1.5,
}
FEW_US, FEW_ROWS, FEW_INPUTS, PROGRAMS = 1.6, 16, 256, 132
# bytes that it reads in a microsecond, before its sums follow: the same on an H100 as on an H200
FEW_BYTES_PER_US = 1.9e6
# of a product whose first weights come from memory: the L2 holds a whole network if it has less than
# `CACHE_BYTES`, which are published
COLD_US, CACHE_BYTES = 1.0, 50e6
# cuBLAS multiplies 64 inputs after 64, one after another, in blocks of the output, and a wave of blocks has
# one on each multiprocessor. It splits more than `MOST_INPUTS` where blocks leave most multiprocessors idle.
# With these microseconds half of its products on two cards are within 5.3 %
INPUTS, INPUTS_US, MOST_INPUTS, BLOCK = 64, 0.095, 1024, 64
# of a program of `tree_attention` that has a multiprocessor alone: its own time, and that of 16 rows times
# 32 keys of 64 numbers
PROGRAM_US, TILE_US = 0.6, 0.15
TILE_ROWS, TILE_KEYS, MOST_TILES, TILE_HEAD = 16, 32, 4, 64
# types of weights that the table is about
DTYPES = ("bfloat16", "float8_e4m3fn")


def decoder_of(sizes: Mapping[str, Any]) -> Network:
    """The network of a decoder alone that has gates, from the sizes of its configuration."""
    head, own = sizes["head_dim"], ("num_hidden_layers", "hidden_size", "intermediate_size")
    heads, keys = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    return Network(
        *(sizes[name] for name in (*own, "vocab_size")),
        head=head,
        has_cross=False,
        is_gated=True,
        keys=keys * head,
        heads=heads * head,
    )


# what `code_time` calls them
CASES = {"3 layers of 256": "example", "6 layers of 1024": "widened"}
NETWORKS = {
    "3 layers of 256": Network(3, 256, 1024, 8000),
    "6 layers of 1024": Network(6, 1024, 4096, 42000),
    **{name: decoder_of(sizes) for name, (_, sizes) in decoders.SHAPES.items()},
}
STEP = "kernels as counted"
# sources, width of the beam
SHAPES = ((1, 5), (64, 5), (64, 50))
# tokens of a source, of a prompt, and of a hypothesis half-way
SOURCE_TOKENS, PROMPT_TOKENS, OWN_TOKENS = 30, 128, 16


@dataclass(frozen=True)
class Part(work.Part):
    """Work that one kernel does, and in how many steps one after another.

    Attributes:
        num_blocks: of a product of cuBLAS's, of 64 rows and 64 outputs each; programs of an attention.
        num_tiles: that each program of an attention has.
        is_cold: whether what a product reads is not in the L2.
        is_few: whether a product is our own for few rows.
    """

    num_blocks: int = 0
    num_tiles: float = 0
    is_cold: bool = False
    is_few: bool = False

    def waves(self, machine: Machine) -> int:
        """How many blocks of a product a multiprocessor has, one after another."""
        return math.ceil(self.num_blocks / machine.multiprocessors)

    def reasons(self, machine: Machine, dtype: str) -> dict[str, float]:
        """Microseconds by reason: the start comes first, and then the longest of the others counts."""
        own = self.work
        start = KERNEL_US[self.role]
        read = own.num_bytes / machine.bytes_per_us / READ_SHARE
        multiply = own.flop / machine.multiplies(dtype) / MULTIPLY_SHARE
        turns = 0.0
        if self.role == "product":
            start = (FEW_US if self.is_few else start) + self.is_cold * COLD_US
            if self.is_few:
                read = max(read, own.num_bytes / FEW_BYTES_PER_US)
            else:
                is_split = 2 * self.num_blocks < machine.multiprocessors
                inputs = min(self.num_inputs, MOST_INPUTS) if is_split else self.num_inputs
                turns = self.waves(machine) * inputs / INPUTS * INPUTS_US
        if self.role == "attention":
            share = max(1.0, self.num_blocks / machine.multiprocessors)
            turns = share * (PROGRAM_US + self.num_tiles * TILE_US)
        return {"start": start, "bytes": read, "products": multiply, "turns": turns}

    def us(self, machine: Machine, dtype: str) -> float:
        """Microseconds of its kernel."""
        start, *others = self.reasons(machine, dtype).values()
        return start + max(others)


def parts(
    network: Network, sources: float, beam: float, dtype: str, launched: bool = False
) -> list[Part]:
    """The products, attentions, norms and the selection of a step, in the order of their launches.

    Keys and values that hypotheses of a beam share are read once.

    Args:
        launched: with the rows that a captured step has, of which some are padding.
    """
    rows = sources * beam
    rows = bucket(math.ceil(rows)) if launched else rows
    own = OWN_TOKENS + UNSHARED_TOKENS * (beam - 1)
    read = SOURCE_TOKENS if network.has_cross else PROMPT_TOKENS
    step = StepRows(sources, beam, rows, own, read)
    return [_launched(network, step, dtype, part) for part in work.parts(network, step, dtype)]


def takes_few(rows: float, inputs: int, outputs: int) -> bool:
    """Whether a product is our own for few rows: `takes_product` of `triton_kernels/product.py`."""
    is_shallow = inputs <= 4 * FEW_INPUTS
    most_rows = FEW_ROWS * (4 if inputs <= FEW_INPUTS else 1)
    most_outputs = PROGRAMS * (32 if is_shallow else 8)
    return rows <= most_rows and outputs <= most_outputs and inputs <= 16 * FEW_INPUTS


def _launched(network: Network, step: StepRows, dtype: str, part: work.Part) -> Part:
    """The part with what its kernel is."""
    given = vars(part)
    if part.role == "product":
        inputs, outputs = part.num_inputs, part.num_outputs
        # float8 has products of torch's
        is_few = takes_few(step.rows, inputs, outputs) and BYTES[dtype] > 1
        is_cold = network.num_weights * BYTES[dtype] > CACHE_BYTES
        blocks = 0 if is_few else math.ceil(step.rows / BLOCK) * math.ceil(outputs / BLOCK)
        return Part(**given, num_blocks=blocks, is_cold=is_cold, is_few=is_few)
    if part.role == "attention":
        # a program has the rows of all heads that read a head of keys
        high = math.ceil(step.beam * network.query_width / network.key_width / TILE_ROWS)
        num_heads = network.key_width / network.head
        programs = step.sources * math.ceil(high / MOST_TILES) * num_heads
        tiles = min(high, MOST_TILES) * sum(math.ceil(n / TILE_KEYS) for n in part.keys)
        return Part(
            **given, num_blocks=math.ceil(programs), num_tiles=tiles * network.head / TILE_HEAD
        )
    return Part(**given)


def by_role(
    machine: Machine, own: list[Part], dtype: str, counted: Counter[str], books_us: float
) -> dict[str, float]:
    """Microseconds of the kernels of each role, and of the time between them.

    `counted` says how many kernels have each role, and `books_us` how long one that keeps the books takes.
    """
    us = {}
    for role in ROLES:
        # what others do on the way has no kernel of its own, and some kernels help others
        found = [part.us(machine, dtype) for part in own if part.role == role][: counted[role]]
        alone = books_us if role == "books" else KERNEL_US[role]
        beside = START_US if found else alone
        us[role] = sum(found) + (counted[role] - len(found)) * beside
    others = counted["product"] - sum(part.is_few for part in own)
    return us | {"between": others * GAP_US + (counted.total() - others) * EARLY_US}


def books_us(network: Network, sources: float) -> float:
    """Microseconds of a kernel that keeps the books, by the machine code of the two of a step."""
    name = min(CASES, key=lambda name: abs(NETWORKS[name].width - network.width))
    case = f"{CASES[name]}, {1 if sources < 2 else 64}x5"
    rows = json.loads((RESULTS / "code-time.json").read_text("utf-8"))["rows"]
    return mean(
        row["µs"] for row in rows if row["case"] == case and role_of(row["system"]) == "books"
    )


def counted_kernels(network: Network, few: bool = False, phase: str | None = None) -> Counter[str]:
    """How many kernels of a step of `fixed_beam` have each role, as `make launches` counted them.

    Other depths follow from the two that were counted.

    Args:
        network: with an encoder, or one of `decoders.SHAPES` of any depth.
        few: of one source, not of 64.
        phase: of this one alone.
    """
    first, second = _counted_rows(network, 1 if few else 64)
    found: Counter[str] = Counter()
    for role in ROLES:
        one, other = (_of_role(row, role, phase) for row in (first, second))
        each = (other - one) / (second["layers"] - first["layers"])
        found[role] = round(one + (network.layers - first["layers"]) * each)
    return found


def _of_role(row: dict, role: str, phase: str | None) -> int:
    phases = row["names"] if phase is None else [phase]
    return sum(
        number
        for name in phases
        for kernel, number in row["names"].get(name, {}).items()
        if role_of(kernel) == role
    )


def _counted_rows(network: Network, sources: int) -> list[dict]:
    """What `make launches` counted for a step of `fixed_beam` of such layers, the fewest first."""
    named = [
        name
        for name in decoders.SHAPES
        if replace(NETWORKS[name], layers=network.layers) == network
    ]
    step = f"fixed_beam, {named[0]}" if named else "fixed_beam"
    rows = json.loads((RESULTS / "launches.json").read_text("utf-8"))["rows"]
    wanted = {"algorithm": step, "sources": sources}
    return sorted((row for row in rows if row.items() >= wanted.items()), key=itemgetter("layers"))


def rows_of(gpu: str, name: str, shape: tuple[int, int], dtype: str) -> Iterator[dict]:
    """The estimates of one case: the limit, the step, and in bfloat16 each kernel that has work."""
    machine, network, (sources, beam) = MACHINES[gpu], NETWORKS[name], shape
    case = f"{gpu}, {name}, {sources} x {beam}, {dtype}"
    least = parts(network, sources, beam, dtype)
    limit = whole(least).us(machine, dtype)
    yield {"case": case, "system": "limit", "kernels": 0, **_estimate(limit, limit)}
    own = parts(network, sources, beam, dtype, launched=True)
    counted = counted_kernels(network, few=sources < 2 and BYTES[dtype] > 1)
    us = by_role(machine, own, dtype, counted, books_us(network, sources))
    number = counted.total()
    yield {"case": case, "system": STEP, "kernels": number, **_estimate(sum(us.values()), limit)}
    if dtype != DTYPES[0]:
        return
    numbers = Counter(_name(part) for part in own)
    limits = {_name(part): part.work.us(machine, dtype) for part in least}
    for part in {_name(part): part for part in own}.values():
        reasons = part.reasons(machine, dtype)
        blocks = {"blocks": part.num_blocks} if part.num_blocks else {}
        waves = {"waves": part.waves(machine)} if part.role == "product" and blocks else {}
        # products of few rows have norms in them
        num_kernels = min(numbers[_name(part)], counted[part.role])
        found = {"kernels": num_kernels, **blocks, **waves}
        found |= _estimate(part.us(machine, dtype), limits[_name(part)])
        why = {"mostly": max(reasons, key=reasons.__getitem__)}
        yield {"case": f"{case}, kernels", "system": _name(part), **found, **why}


def _estimate(us: float, limit: float) -> dict[str, float]:
    return {
        "limit, µs": float(f"{limit:.3g}"),
        "estimate, µs": round(us, 1),
        "share of the limit, %": round(100 * limit / us),
    }


def _name(part: work.Part) -> str:
    """Name a kernel. Products of one name may differ in their inputs."""
    inputs = f", {part.num_inputs} inputs" if part.num_inputs else ""
    return part.name + inputs


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
