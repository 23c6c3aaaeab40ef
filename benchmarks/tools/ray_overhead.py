"""What Ray costs on one machine: the same corpus by this process and by as many processes of a cluster.

python -m benchmarks.tools.ray_overhead                 write results/ray-overhead-cpu.json
python -m benchmarks.tools.ray_overhead --lines 800 --part-lines 100 --repeats 2    quick; give $OUT then

Both take turns, with one thread for each process that decodes. `lines/s` counts from the end of the first
part to the end of the last, so that the start of Ray and of the model counts in `start_s` alone.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pybeam
from benchmarks.journal import Journal, results_folder
from benchmarks.tools.makespan import ROOT
from pybeam.cli.ray import connected
from pybeam.corpus import Corpus, Executor, FinishedPart, Here, Job, Run
from pybeam.corpus.run import Listener


class Clock(Listener):
    """Notes when each part is on the disk."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.ends: list[float] = []

    def finished(self, part: FinishedPart, share: float) -> None:
        self.ends.append(time.perf_counter() - self.begin)


def measured(
    path: Path, part_lines: int, job: Job, start: Callable[[int], Executor]
) -> dict[str, float]:
    """Decode the lines of a file once."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        run = Run(folder, job, Corpus([str(path)]), part_lines=part_lines, listener=clock)
        summary = run.execute(start)
    seconds = clock.ends[-1] - clock.ends[0]
    lines = summary.num_lines - part_lines
    return {"lines/s": lines / seconds, "start_s": clock.ends[0] - part_lines * seconds / lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--part-lines", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "bible-es-en" / "train.es"
    )
    options = parser.parse_args()
    search = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
    job = Job((str(ROOT / "examples" / "models" / "bible-es-en"),), search, threads=1)
    found: dict[str, list[dict[str, float]]] = {"one process": [], "Ray, one process": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(connected(None))
        from pybeam.ray.executor import RayExecutor

        starts = (lambda _: Here(job.open()), lambda _: RayExecutor(job, 1))
        path = Path(folder, "in.es")
        lines = options.data.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[: options.lines]), "utf-8")
        for _ in range(options.repeats):
            for (system, own), start in zip(found.items(), starts, strict=True):
                own.append(measured(path, options.part_lines, job, start))
                print(system, own[-1], flush=True)
    journal = Journal(results_folder("cpu"), "ray-overhead-cpu", ("system",))
    for system, runs in found.items():
        row = {name: round(statistics.median(one[name] for one in runs), 2) for name in runs[0]}
        ratios = [
            one["lines/s"] / other["lines/s"]
            for one, other in zip(runs, found["one process"], strict=True)
        ]
        row["of one process"] = round(statistics.median(ratios), 4)
        journal.add(
            {"system": system, "lines": options.lines, "part_lines": options.part_lines, **row}
        )
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
