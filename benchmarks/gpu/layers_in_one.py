"""All layers of a decoder in one launch beside a launch for each part: results, and how long both take.

    python -m benchmarks.gpu.layers_in_one [--minutes 1] [--dry-run]

Layers and rows are random, as in a step of one source with a beam of 5 behind 16 steps, in bfloat16. Each way
is a CUDA graph, replayed with what the L2 has kept and behind a flush of it. Rows go to layers-in-one.json,
in $OUT if that is set, else in benchmarks/results/<gpu>/. The tool fails where results differ.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.journal import Journal, results_folder, table
from benchmarks.kernels.clock import Replay, replay_us
from pybeam.backends.torch_layers import Activation
from pybeam.triton_kernels import counters
from pybeam.triton_kernels.persistent import LayersShape, Programs, programs_of
from tests.support.aot import recorded
from tests.support.decoder_layers import LayersCase, layers_case

# a name, layers, width and inner width
NETWORKS = {"widened": (6, 1024, 4096), "example": (3, 256, 1024)}
HEAD_SIZE, ROWS, NODES, SOURCE_TOKENS = 64, 5, 36, 30
# of the largest number: numbers are rounded to bfloat16 several times a layer
TOLERANCE = 0.02
NUM_COUNTERS, MORE_LAUNCHES = 1 << 16, 20


def case_of(name: str, device: torch.device) -> LayersCase:
    num_layers, width, inner = NETWORKS[name]
    shape = LayersShape(
        width, inner, width // HEAD_SIZE, Activation.RELU, 1e-5, 1 / math.sqrt(HEAD_SIZE), True
    )
    torch.manual_seed(1)
    sizes = [ROWS], [NODES], [SOURCE_TOKENS], torch.bfloat16, device
    return layers_case(shape, num_layers, *sizes)


def variants(name: str, device: torch.device) -> Iterator[tuple[str, Programs]]:
    """Ways to divide the launch: the default, and others that differ from it in one number."""
    own = programs_of(LayersShape(*NETWORKS[name][1:], 1, 0, 0.0, 0.0, True), device)
    yield "in one", own
    for ahead in {0, 1, 2, 3} - {own.ahead}:
        yield f"in one, {ahead} ahead", own._replace(ahead=ahead)
    yield "in one, 32 nodes", own._replace(num_nodes=32)
    if name == "example":
        yield "in one, 8 warps", own._replace(num_warps=8)
        for num in (32, 64, 96):
            yield f"in one, {num} programs", own._replace(num=num)


def times(call: Callable[[], object]) -> dict:
    replay = Replay([call])
    warm, cold = (round(replay_us(replay, is_cold), 1) for is_cold in (False, True))
    return {"µs": warm, "cold L2, µs": cold, "nodes": replay.num_nodes}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    far = (found.float() - expected.float()).abs().max()
    return round(float(far / expected.float().abs().max()), 5)


def check(case: LayersCase, expected: torch.Tensor, programs: Programs) -> dict:
    """How far the results of one launch are from those of many; new keys and values go to pools."""
    kept = [pool.clone() for pool in case.own_pools]
    found = case.in_one(programs)
    error = distance(found, expected)
    pools = zip(case.own_pools, kept, strict=True)
    pool_error = max(distance(a, b) for a, b in pools)
    if not max(error, pool_error) < TOLERANCE:
        raise AssertionError(f"results differ by {error}, and keys and values by {pool_error}")
    for i in range(MORE_LAUNCHES):
        if not torch.equal(found, case.in_one(programs)):
            raise AssertionError(f"launch {i + 2} has other results than the first")
    return {"error": error, "equal": torch.equal(found, expected)}


def measured(name: str, programs: Programs | None, device: torch.device) -> dict:
    case = case_of(name, device)
    expected = case.by_parts()
    if programs is None:
        return times(case.by_parts)
    addresses = case.addresses
    found = check(case, expected, programs)
    return found | times(lambda: case.in_one(programs, addresses)) | check(case, expected, programs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="start no case after so long")
    parser.add_argument(
        "--dry-run", action="store_true", help="record a launch on the CPU; keeps no file"
    )
    options = parser.parse_args()
    if options.dry_run:
        case = case_of("example", torch.device("cpu"))
        [launch] = recorded(lambda: case.in_one(Programs(132, 4)))
        print(f"{launch.kernel.__name__} of {launch.grid[0]} programs")
        return
    device = torch.device("cuda")
    journal = Journal(
        results_folder("cuda"), "layers-in-one", ("case", "system"), minutes=options.minutes
    )
    held = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
    with counters.lent(held):
        for name in NETWORKS:
            systems = [("by parts", None), *variants(name, device)]
            for system, programs in systems:
                key = {"case": name, "system": system}
                journal.attempt(key, partial(measured, name, programs, device))
    if int(held.abs().max()):
        sys.exit("a launch has left counters that are not zero")
    journal.say(table(journal.own_rows))
    journal.finish()


if __name__ == "__main__":
    main()
