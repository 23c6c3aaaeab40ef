"""Send very many short requests through one stream: nothing may grow, slow down, or get lost.

`make soak [MINUTES=...]`. The requests are drawn from a list of a few hundred, whose results are known: of
random width, length and overrides, some of them wrong. Big and small ones come in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import pybeam
from fuzz.corpus import valid
from pybeam.backends.arrays import NULL_SLOT
from support.laws import essence

NUM_KINDS = 300
# so many big requests come after as many small ones
BLOCK = 200
# of a report; the first ones warm up
NUM_PARTS = 50
# memory of the last part less that of the median part: what a heap does by itself
MEGABYTES = 12.0
# time of the CPU per request, the last fifth against the second one
SLOWDOWN = 1.25
SEARCH = dict(n_best=1, max_length=8, processors=[pybeam.processors.temperature(1.0)])


@dataclasses.dataclass
class Kind:
    """A request, and what becomes of it alone: a result, or the type and the text of its error."""

    request: pybeam.Request
    expected: Any


@dataclasses.dataclass
class Part:
    """Measurements at the end of a part of the requests."""

    done: int
    seconds: float
    cpu_seconds: float
    megabytes: float
    files: int
    threads: int


def drawn(chance: random.Random, is_big: bool) -> pybeam.Request:
    """A legal request, or one in twelve that must fail."""
    length = chance.randint(15, 30) if is_big else chance.randint(1, 5)
    source = [chance.randrange(3, 40) for _ in range(length)] + [2]
    changes: dict[str, Any] = {
        "width": chance.randint(8, 24) if is_big else chance.choice([None, 1, 2, 3, [2, 4]]),
        "max_length": chance.randint(15, 25) if is_big else chance.randint(1, 6),
        "n_best": chance.choice([None, 1]),
        "threshold": chance.choice([None, None, 1.5]),
        "scoring": chance.choice([None, None, pybeam.scoring.power(0.7)]),
        "prefix": chance.choice([None, None, [5], [6, 7]]),
        "processors": chance.choice([None, None, [pybeam.processors.temperature(0.8)]]),
        "ended_only": chance.choice([None, None, True]),
    }
    if chance.random() < 1 / 12:
        name, value = chance.choice(
            [
                ("width", 0),
                ("n_best", 99),
                ("prefix", [10**6]),
                ("max_length", "a"),
                ("source", [-1]),
            ]
        )
        changes[name] = value
    if chance.random() < 1 / 12:
        changes["target"] = [4, 5]
    return dataclasses.replace(pybeam.Request(source), **changes)


def outcome(result: pybeam.Result) -> Any:
    if result.error is not None:
        return type(result.error).__name__, str(result.error)
    [(_, *rest)] = essence([result])
    return rest


def known(decoder: pybeam.Decoder, seed: int) -> tuple[list[Kind], list[Kind]]:
    """The small kinds and the big ones; each was decoded by itself."""
    chance = random.Random(seed)
    found: list[list[Kind]] = []
    for is_big in (False, True):
        requests = [drawn(chance, is_big) for _ in range(NUM_KINDS // 2)]
        results = [decoder.decode([request], on_error="return")[0] for request in requests]
        found.append([Kind(r, outcome(one)) for r, one in zip(requests, results, strict=True)])
    small, big = found
    return small, big


def number_of(index: int, seed: int) -> int:
    """Which kind the request with this index is: nothing is kept per request."""
    return (index * 2654435761 + seed) % 2**32 * (NUM_KINDS // 2) >> 32


def soak(num_requests: int, seconds: float, seed: int, kind: str) -> dict[str, Any]:
    model = pybeam.load_model(valid(kind))
    search = pybeam.variable_beam(4, **SEARCH)
    small, big = known(pybeam.Decoder(model, search, pybeam.Batch(1)), seed)
    decoder = pybeam.Decoder(model, search, pybeam.Fifo(32))
    seen = bytearray(num_requests)
    end = time.monotonic() + seconds

    def kind_of(index: int) -> Kind:
        kinds = big if index // BLOCK % 2 else small
        return kinds[number_of(index, seed)]

    def requests() -> Iterator[pybeam.Request]:
        for index in range(num_requests):
            if time.monotonic() > end:
                return
            yield dataclasses.replace(kind_of(index).request, id=index)

    parts, num_done = [measured(0)], 0
    with tqdm(total=num_requests, unit="requests", mininterval=1) as bar:
        for result in decoder.stream(requests()):
            assert result.id == result.index
            assert not seen[result.index], f"request {result.index} came twice"
            seen[result.index] = 1
            expected = kind_of(result.index).expected
            assert outcome(result) == expected, (result, expected)
            num_done += 1
            # by time if that is what ends it
            part = num_requests / NUM_PARTS
            if (
                num_done >= part * len(parts)
                or time.monotonic() > parts[-1].seconds + seconds / NUM_PARTS
            ):
                parts.append(measured(num_done))
                bar.set_postfix(MB=round(parts[-1].megabytes), refresh=False)
            bar.update()
    [work] = decoder._idle
    lost = {
        "requests": seen.count(0, 0, num_done),
        "slots": work.slots.num - (NULL_SLOT + 1) - len(work.slots.free),
        "pages": work.tree.num_total_pages - int(work.tree.num_free_pages),
    }
    return report(parts, lost) | {"seed": seed, "requests": num_done, "model": kind}


def measured(num_done: int) -> Part:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Part(
        done=num_done,
        seconds=time.monotonic(),
        cpu_seconds=time.process_time(),
        megabytes=pages * resource.getpagesize() / 2**20,
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
    )


def report(parts: list[Part], lost: dict[str, int]) -> dict[str, Any]:
    """Sum up the measurements, and say what is wrong with them."""
    fifth = max(len(parts) // 5, 1)

    def cost(some: list[Part]) -> float:
        return (some[-1].cpu_seconds - some[0].cpu_seconds) / max(some[-1].done - some[0].done, 1)

    growth = parts[-1].megabytes - statistics.median(part.megabytes for part in parts[fifth:])
    slowdown = cost(parts[-fifth - 1 :]) / cost(parts[fifth : 2 * fifth + 1])
    wrong = [f"{count} {name} are lost" for name, count in lost.items() if count]
    if growth > MEGABYTES:
        wrong.append(f"memory grew by {growth:.0f} MB")
    if slowdown > SLOWDOWN:
        wrong.append(f"requests take {slowdown:.2f} times as long in the end")
    for name in ("files", "threads"):
        more = getattr(parts[-1], name) - getattr(parts[min(fifth, len(parts) - 1)], name)
        if more > 0:
            wrong.append(f"{more} more {name} are open in the end")
    return {
        "wrong": wrong,
        "growth_megabytes": round(growth, 1),
        "slowdown": round(slowdown, 3),
        "seconds": round(parts[-1].seconds - parts[0].seconds, 1),
        "megabytes": [round(part.megabytes, 1) for part in parts],
        "lost": lost,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so many")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="default: a random one"
    )
    parser.add_argument(
        "--model", default="m2m_100", help="a kind of fuzz.corpus (default: m2m_100)"
    )
    parser.add_argument("--output", type=Path, help="a file for the result, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"soak: seed {options.seed}", flush=True)
    found = soak(options.requests, 60 * options.minutes, options.seed, options.model)
    text = json.dumps(found)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return bool(found["wrong"])


if __name__ == "__main__":
    sys.exit(main())
