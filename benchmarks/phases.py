"""The share of a step that no operator covers, Python's above all, at about 64 rows per step."""

from __future__ import annotations

from collections.abc import Iterator

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from pybeam.cli.profile import random_sources
from pybeam.inspect.profile import as_dict, measure

NUM_SOURCES, SOURCE_LENGTH, STEPS, WIDTH = 13, 32, 32, 5
# of which the fastest counts
REPEATS = {"example": 25, "widened": 7}


def profile(setup: Setup) -> Iterator[list[Task]]:
    """Phases of a step, and the share that no operator covers."""
    # every source takes exactly that many steps, so that every step has as many rows
    algorithm = pybeam.fixed_beam(WIDTH, min_length=STEPS - 1, max_length=STEPS)

    def profiled(network: str) -> dict:
        model = setup.networks.ours(network)
        requests = random_sources(model, NUM_SOURCES, (SOURCE_LENGTH, SOURCE_LENGTH))
        decoder = pybeam.Decoder(model, algorithm, pybeam.Batch(NUM_SOURCES))
        repeats = 2 if setup.is_tiny else REPEATS[network]
        numbers = as_dict(measure(decoder, requests, repeats=repeats))
        step = numbers["step"]
        return {
            "ms/step": step["ms"],
            **{f"{name} %": 100 * line["share"] for name, line in numbers["phases"].items()},
            "gap %": 100 * step["gap_share"],
            "gap at most %": 100 * step["gap_limit_share"],
            **numbers,
        }

    for network in REPEATS:
        yield [Task(network, "pybeam", lambda network=network: profiled(network))]
