"""Times what a request costs before it is decoded: its checks, its overrides and its place in the queue.

python -m benchmarks.admission [--requests 2000] [--repeats 7]

Prints microseconds per request, the least of all repeats. The model is the example model.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import pybeam
from pybeam import processors
from pybeam.backends import for_decoding
from pybeam.engine.admission import Admission
from pybeam.engine.arrivals import IterableArrivals
from pybeam.engine.workspace import Workspace

MODEL = Path(__file__).parents[1] / "examples" / "models" / "bible-es-en"
NUM_SEQUENCES = 10_000


def kinds(num: int, vocab_size: int) -> dict[str, list[pybeam.Request]]:
    """Requests of every kind, sources of 5 to 60 tokens."""
    rng = random.Random(1)
    sources = [
        [rng.randrange(3, vocab_size) for _ in range(rng.randint(5, 60))] for _ in range(num)
    ]
    sequences = [[rng.randrange(3, vocab_size) for _ in range(4)] for _ in range(NUM_SEQUENCES)]
    some, many = (processors.suppress_sequences(sequences[:n]) for n in (10, NUM_SEQUENCES))
    power = pybeam.scoring.power(0.6)

    def requests(**changes: object) -> list[pybeam.Request]:
        return [pybeam.Request(source, **changes) for source in sources]

    return {
        "plain": requests(),
        "width and length": requests(width=3, max_length=40),
        "all numbers": requests(
            width=4, n_best=2, min_length=2, max_length=40, threshold=2.0, scoring=power
        ),
        "prefix of 20": requests(prefix=[5] * 20),
        "target of 40": requests(target=[5] * 40),
        "10 sequences": requests(processors=[some]),
        f"{NUM_SEQUENCES:,} sequences": requests(processors=[many]),
    }


def seconds(work: Workspace, requests: Sequence[pybeam.Request]) -> float:
    """The seconds in which all these requests enter the queue."""
    schedule = pybeam.Fifo(64)
    admission = Admission(
        IterableArrivals(requests), work, schedule, wants_log_probs=False, wants_partials=False
    )
    begin = time.perf_counter()
    num_queued = 0
    while not admission.is_done:
        failed = list(admission.read(may_wait=True))
        assert not failed, failed[0].error
        while admission.next() is not None:
            admission.take()
            num_queued += 1
    assert num_queued == len(requests)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    model = pybeam.load_model(MODEL, device="cpu")
    algorithm = pybeam.fixed_beam(5, processors=[processors.suppress_sequences([])])
    work = Workspace(model, algorithm, for_decoding("auto", torch.device("cpu")))
    found = kinds(options.requests, model.vocab_size)
    least = dict.fromkeys(found, float("inf"))
    for _ in range(options.repeats):  # they take turns, as the machine is never the same
        for name, requests in found.items():
            least[name] = min(least[name], seconds(work, requests))
    for name, value in least.items():
        print(f"{name:<18} {1e6 * value / options.requests:8.1f} us")


if __name__ == "__main__":
    main()
