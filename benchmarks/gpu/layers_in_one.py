"""Layers, logits and selection of a step in one launch beside a launch for each part: results, and times.

    python -m benchmarks.gpu.layers_in_one [--minutes 1] [--dry-run]

Layers and rows are random, as in a step of one source with a beam of 5 behind 16 steps, in bfloat16.
Survivors are those of `select` among the logits of the same launch. Each way is a CUDA graph, replayed with
what the L2 has kept and behind a flush of it. Rows go to layers-in-one.json, in $OUT if that is set, else in
benchmarks/results/<gpu>/. The tool fails where results differ. `layers_time` says how long they should take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.journal import Journal, results_folder, table
from benchmarks.kernels.clock import Replay, replay_us
from pybeam.backends import native  # registers the operators
from pybeam.contracts import Finishing, NewNodes, Survivors
from pybeam.triton_kernels.attention import tree_attention
from pybeam.triton_kernels.product import product
from tests.support.decoder_layers import (
    CROSS_OUT,
    HEAD_SIZE,
    INNER,
    INNER_OUT,
    OWN_OUT,
    QKV,
    QUERY,
    LayersCase,
    LayersShape,
    Selected,
    given,
    layers_case,
)

# a name, layers, width, inner width and logits
NETWORKS = {"example": (3, 256, 1024, 8000), "widened": (6, 1024, 4096, 42000)}
ROWS, NODES, SOURCE_TOKENS = 5, 36, 30
# of the largest number: numbers are rounded to bfloat16 several times a layer
TOLERANCE = 0.02
MORE_LAUNCHES = 20


def case_of(name: str, device: torch.device) -> LayersCase:
    num_layers, width, inner, num_logits = NETWORKS[name]
    torch.manual_seed(1)
    sizes = [ROWS], [NODES], [SOURCE_TOKENS], torch.bfloat16, device
    shape = LayersShape(width, inner)
    return layers_case(shape, num_layers, *sizes, num_logits=num_logits)


def selected(device: torch.device) -> Selected:
    """The rules of a beam that is refilled."""
    offset = torch.tensor([0, ROWS], dtype=torch.int32, device=device)
    score = -torch.rand(ROWS, device=device)
    rules = {"finishing": int(Finishing.REFILL), "capacity": 2 * ROWS}
    return Selected(score, offset, offset[1:].clone(), **rules)


def in_one(arguments: tuple) -> list[Tensor]:
    return torch.ops.pybeam.decoder_layers(*arguments)


def by_parts(case: LayersCase) -> Tensor:
    """The same logits with a launch for each part, as a step takes them without PYBEAM_PERSISTENT."""
    # sums are written over what they are added to
    shape, x = case.shape, case.states.clone()
    heads = shape.num_heads, HEAD_SIZE
    for products, *pools in zip(case.products, case.own_pools, case.source_pools, strict=True):
        own, source = (pool.view(len(pool), 2, *heads).unbind(1) for pool in pools)

        def multiplied(x: Tensor, i: int, activation: int = 0, products=products) -> Tensor:
            scale, shift, weight, bias = products[i]
            return product(x, weight, bias, activation, None, (scale, shift, shape.epsilon))

        def added(x: Tensor, y: Tensor, i: int, products=products) -> Tensor:
            return product(y, *products[i][2:], 0, x, None)

        query, key, value = multiplied(x, QKV).view(len(x), 3, *heads).unbind(1)
        new = NewNodes(key, value, case.new_cell)
        y = tree_attention(query, *own, case.cells, shape.scale, None, new)
        x = added(x, y.flatten(1), OWN_OUT)
        query = multiplied(x, QUERY).view(-1, *heads)
        y = tree_attention(query, *source, case.source_cells, shape.scale)
        x = added(x, y.flatten(1), CROSS_OUT)
        x = added(x, multiplied(x, INNER, shape.activation), INNER_OUT)
    scale, shift, weight, bias = case.output
    assert weight is not None and scale is not None
    return product(x, weight, bias, 0, None, (scale, shift, shape.epsilon))


def times(call: Callable[[], object]) -> dict:
    replay = Replay([call])
    warm, cold = (round(replay_us(replay, is_cold), 1) for is_cold in (False, True))
    return {"µs": warm, "cold L2, µs": cold, "nodes": replay.num_nodes}


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    far = (found.float() - expected.float()).abs().max()
    return round(float(far / expected.float().abs().max()), 5)


def check(case: LayersCase, rules: Selected, expected: Tensor) -> float:
    """How far logits of one launch are from those of many, whose keys and values lie in the pools."""
    kept = [pool.clone() for pool in case.own_pools]
    [found] = in_one(given(case))
    pools = zip(case.own_pools, kept, strict=True)
    error = max(distance(found, expected), *(distance(a, b) for a, b in pools))
    if not error < TOLERANCE:
        raise AssertionError(f"logits differ by {error} of the largest number")
    for i in range(MORE_LAUNCHES):
        if not torch.equal(found, in_one(given(case))[0]):
            raise AssertionError(f"launch {i + 2} has other logits than the first")
        chosen = Survivors(*in_one(given(case, rules)))
        survivors = native.select(found, *rules[:3], rules.options)
        if not all(map(torch.equal, chosen[:2], survivors[:2])):
            raise AssertionError(f"launch {i + 2} has other survivors than `select`")
    return error


def measured(name: str, is_one: bool, device: torch.device) -> dict:
    case, rules = case_of(name, device), selected(device)
    expected = by_parts(case)
    if not is_one:
        return times(lambda: native.select(by_parts(case), *rules[:3], rules.options))
    error = check(case, rules, expected)
    found = times(lambda: in_one(given(case, rules)))
    return {"error": max(error, check(case, rules, expected))} | found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="start no case after so long")
    parser.add_argument(
        "--dry-run", action="store_true", help="compute small layers on this CPU; keeps no file"
    )
    options = parser.parse_args()
    if options.dry_run:
        torch.manual_seed(1)
        small = layers_case(LayersShape(64, 128), 1, [3], [9], [5], num_logits=40)
        expected, _ = small.expected()
        rules = selected(torch.device("cpu"))
        print(f"{len(given(small, rules))} arguments, logits {list(expected.shape)}")
        return
    assert native is not None
    device = torch.device("cuda")
    journal = Journal(
        results_folder("cuda"), "layers-in-one", ("case", "system"), minutes=options.minutes
    )
    for name in NETWORKS:
        for system, is_one in (("a launch for each part", False), ("one launch", True)):
            key = {"case": name, "system": system}
            journal.attempt(key, partial(measured, name, is_one, device))
    journal.say(table(journal.own_rows))
    journal.finish()


if __name__ == "__main__":
    main()
