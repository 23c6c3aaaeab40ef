"""A simulated schedule: how long 10, 100 and 1,000 nodes take for 10^9 lines in parts.

python -m benchmarks.tools.makespan                 measure, simulate, write results/makespan-cpu.json
python -m benchmarks.tools.makespan --lines 2000    measure with fewer lines; give $OUT then

Measured on this machine: the time of a part, how much parts of equal size differ, and what the one process
that reads lines, hands parts out and writes them needs for a line and for a part.
Assumed: how much slower some parts are than others (`STRAGGLERS`), and what a lost node costs (`Costs`).
Published: how often nodes are lost (`LOSSES`).

A node runs `PROCESSES` processes, each of which has one part at a time. The process that hands them out does
one thing at a time. A node that is lost takes the parts in work with it; they are handed out again as soon
as the loss is noticed, and the node is replaced.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import pybeam
from benchmarks.journal import Journal, results_folder
from pybeam.corpus import Corpus, Counts, FinishedPart, Job, Part, Run, parts_of
from pybeam.corpus.manifest import Manifest, PartEntry
from pybeam.corpus.run import Listener

ROOT = Path(__file__).parents[2]
LINES = 10**9
NODES = (10, 100, 1000)
PROCESSES = 16
PART_LINES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
# standard deviation of the logarithm of a part's time, beside what is measured: neighbours on a machine
STRAGGLERS = 0.2
DAY = 86_400.0
# per node and day
LOSSES = {
    "none": 0.0,
    # 419 interruptions that nobody planned in 54 days on 16,384 GPUs, 8 a node: "The Llama 3 Herd of
    # Models" (2024), section 3.3.4
    "hardware": 419 / 54 / (16_384 / 8),
    # Google Compute Engine stops each preemptible machine within 24 hours of its start; as a rate
    "preemptible": 1.0,
}
# parts of the measurement
MEASURED_PARTS = 20
SEEDS = 3


@dataclass(frozen=True)
class Costs:
    """Seconds.

    Attributes:
        line: of one process for one line.
        spread: standard deviation of the logarithm of the time of a part of `measured_lines`.
        measured_lines: see `spread`, which falls with the root of a part's lines.
        driver_line, driver_part: of the process that hands parts out.
        driver_entry: it writes the manifest after each part, so much for every part that is in it.
        start: until a process of a new node can decode.
        notice: until the loss of a node is noticed.
        replacement: until there is another node.
        num_drivers: runs side by side, each with a share of the parts and of the nodes (`--shard`).
    """

    line: float
    spread: float
    measured_lines: int
    driver_line: float
    driver_part: float
    driver_entry: float = 0.0
    start: float = 30.0
    notice: float = 30.0
    replacement: float = 300.0
    num_drivers: int = 1


@dataclass(frozen=True)
class Outcome:
    """One simulated run: its seconds, and how many nodes were lost."""

    seconds: float
    num_lost: int


class Simulation:
    """One run: so many parts of equal size on so many nodes.

    Args:
        costs: what things take.
        num_nodes, part_lines, num_lines: the run.
        rate: losses per node and second.
        seed: of all that is random.
    """

    def __init__(
        self, costs: Costs, num_nodes: int, part_lines: int, num_lines: int, rate: float, seed: int
    ) -> None:
        self._costs, self._rate = costs, rate
        self._random = np.random.default_rng(seed)
        self._num_parts = self._num_left = math.ceil(num_lines / part_lines)
        self._part_lines = part_lines
        own = costs.spread * math.sqrt(costs.measured_lines / part_lines)
        self._sigma = math.hypot(own, STRAGGLERS)
        self._times: Iterator[float] = iter(())
        # the driver's own time for a part, from its lines to its file
        self._driving = costs.driver_part + costs.driver_line * part_lines
        self._driver_free = 0.0
        self._dies = [self._lifetime() for _ in range(num_nodes)]
        # node and time
        self._lost: set[tuple[int, float]] = set()
        # (time, node); node -1: a lost part comes back
        self._events = [(costs.start, node) for node in range(num_nodes) for _ in range(PROCESSES)]
        self._idle: list[int] = []

    def run(self) -> Outcome:
        """Return what became of it."""
        end = 0.0
        while self._events:
            now, node = heapq.heappop(self._events)
            if node < 0:
                self._num_left += 1
                if self._idle:
                    heapq.heappush(self._events, (now, self._idle.pop()))
            elif not self._num_left:
                self._idle.append(node)
            else:
                end = max(end, self._work(now, node))
        return Outcome(end, len(self._lost))

    def _work(self, now: float, node: int) -> float:
        """Let a process of a node take a part; returns when it is done, or 0 if it is lost."""
        if not self._is_alive(node, now):
            return 0.0
        self._num_left -= 1
        num_written = self._num_parts - self._num_left
        driving = self._driving + self._costs.driver_entry * num_written
        begin = self._driver_free = max(now, self._driver_free) + driving
        finished = begin + self._duration()
        dies = self._dies[node]
        if finished <= dies:
            heapq.heappush(self._events, (finished, node))
            return finished
        self._lost.add((node, dies))
        noticed = max(dies, begin) + self._costs.notice
        heapq.heappush(self._events, (noticed, -1))
        heapq.heappush(self._events, (max(self._back(node), begin), node))
        return 0.0

    def _is_alive(self, node: int, now: float) -> bool:
        """Whether a node, or the one that has replaced it, is there. If not, the process comes back later."""
        while self._dies[node] <= now:
            back = self._back(node)
            if now < back:
                heapq.heappush(self._events, (back, node))
                return False
            self._dies[node] = back + self._lifetime()
        return True

    def _back(self, node: int) -> float:
        return self._dies[node] + self._costs.replacement + self._costs.start

    def _lifetime(self) -> float:
        return self._random.exponential(1 / self._rate) if self._rate else math.inf

    def _duration(self) -> float:
        found = next(self._times, None)
        if found is None:
            mean = self._costs.line * self._part_lines
            logs = self._random.normal(-(self._sigma**2) / 2, self._sigma, 100_000)
            self._times = iter((mean * np.exp(logs)).tolist())
            found = next(self._times)
        return found


def simulated(
    costs: Costs, num_nodes: int, part_lines: int, rate: float, num_lines: int = LINES
) -> dict:
    """Return the medians over some seeds, beside the ideal. The last driver that ends counts."""
    share = costs.num_drivers
    nodes, lines = num_nodes // share, num_lines // share
    seconds, lost = [], []
    for seed in range(SEEDS):
        found = [
            Simulation(costs, nodes, part_lines, lines, rate / DAY, share * seed + i).run()
            for i in range(share)
        ]
        seconds.append(max(one.seconds for one in found))
        lost.append(sum(one.num_lost for one in found))
    ideal = lines * costs.line / (nodes * PROCESSES)
    return {
        "hours": round(statistics.median(seconds) / 3600, 3),
        "ideal_hours": round(ideal / 3600, 3),
        "share_of_ideal": round(ideal / statistics.median(seconds), 4),
        "nodes_lost": statistics.median(lost),
    }


def simulate_all(costs: Costs, journal: Journal, num_lines: int) -> None:
    """Add a row for every number of drivers and nodes, rate of losses and size of parts."""
    for drivers, num_nodes, part_lines in itertools.product((1, 10), NODES, PART_LINES):
        own = replace(costs, num_drivers=drivers)
        undisturbed = 0.0
        for losses, rate in LOSSES.items():
            row = simulated(own, num_nodes, part_lines, rate, num_lines)
            if not rate:
                undisturbed = row["hours"]
            # with fewer, the difference is chance
            elif row["nodes_lost"] >= 15:
                more = (row["hours"] - undisturbed) * num_nodes / row["nodes_lost"]
                row["node_minutes_per_loss"] = round(60 * more, 1)
            case = {"case": f"{num_nodes} nodes", "losses": losses, "drivers": drivers}
            journal.add({**case, "part_lines": part_lines, **row})


class Instant:
    """An executor that costs nothing, so that what is left is the driver."""

    def run(self, parts: Iterable[Part]) -> Iterator[FinishedPart]:
        for part in parts:
            outputs = [f"{b' '.join(line).decode()}\n" for line in part.lines]  # type: ignore[arg-type]
            counts = Counts(lines=part.num_lines)
            yield FinishedPart(part.index, part.first_line, part.checksum, outputs, [], counts)


def measured(lines: list[str], job: Job) -> Costs:
    """Measure what there is to measure, on this machine with one thread."""
    worker = job.open()
    size = len(lines) // MEASURED_PARTS
    parts = list(parts_of([(line.encode(),) for line in lines], size))[:MEASURED_PARTS]
    worker.run(parts[0])
    seconds = []
    for part in parts:
        begin = time.perf_counter()
        worker.run(part)
        seconds.append(time.perf_counter() - begin)
    spread = statistics.stdev(map(math.log, seconds))
    few, many = _driver_seconds(lines, job, 100), _driver_seconds(lines, job, 10_000)
    # seconds of a line at two part sizes: line + part / size
    driver_part = max(0.0, (few - many) / (1 / 100 - 1 / 10_000))
    driver_line = max(1e-9, many - driver_part / 10_000)
    line = statistics.median(seconds) / size
    return Costs(line, spread, size, driver_line, driver_part, _entry_seconds())


def _driver_seconds(lines: list[str], job: Job, part_lines: int) -> float:
    """Return the driver's seconds for a line, with the disk of a temporary folder."""
    repeats = math.ceil(50_000 / len(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.txt")
        path.write_text("".join(f"{line}\n" for line in lines * repeats))
        run = Run(
            Path(folder, "out"),
            job,
            Corpus([str(path)]),
            part_lines=part_lines,
            listener=Listener(),
        )
        begin = time.perf_counter()
        run.execute(lambda _: Instant())
        return (time.perf_counter() - begin) / (len(lines) * repeats)


def _entry_seconds() -> float:
    """Return the driver's seconds for an entry of the manifest, whenever it is written."""
    entries = {i: PartEntry(10_000, 0, "0" * 32, "0" * 32) for i in range(20_000)}
    manifest = Manifest("0", {}, {}, 10_000, (1, 1), [], entries)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        Path(folder, "manifest.json").write_bytes(manifest.to_bytes())
        return (time.perf_counter() - begin) / len(entries)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=4_000, help="that are decoded to measure")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "bible-es-en" / "test.es"
    )
    parser.add_argument("--simulated", type=int, default=LINES, help="lines of the schedule")
    options = parser.parse_args()
    lines = options.data.read_text("utf-8").splitlines()
    lines = (lines * math.ceil(options.lines / len(lines)))[: options.lines]
    search = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
    model = str(ROOT / "examples" / "models" / "bible-es-en")
    costs = measured(lines, Job((model,), search, threads=1))
    identity = ("case", "losses", "part_lines", "drivers")
    journal = Journal(results_folder("cpu"), "makespan-cpu", identity)
    journal.machine = asdict(costs) | {
        "stragglers": STRAGGLERS,
        "processes_of_a_node": PROCESSES,
        "losses_per_node_and_day": LOSSES,
    }
    simulate_all(costs, journal, options.simulated)
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
