"""A corpus in parts: its throughput beside `Decoder.decode`, its memory, what a kill costs, its processes.

The corpus is verses of the training set, again and again, each time with another number before them. In
the case `processes` the column `model` is what `pybeam.corpus.executors` expects of "times the first".
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pybeam
from benchmarks import corpus
from benchmarks.memory import in_process
from benchmarks.meter import resident_bytes
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.tools.data import ROOT, folder_with
from benchmarks.turns import READY, in_turns
from pybeam.corpus import Corpus, FinishedPart, Here, Job, Run
from pybeam.corpus.executors import Plan, Processes, relative_seconds
from pybeam.corpus.run import Listener

ALGORITHM = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
# one step: what is measured is what remains in memory, and not the search
ONE_STEP = pybeam.greedy(max_length=2)
NUM_LINES, NUM_SHORT_LINES, NUM_PROCESS_LINES, NUM_KILL_LINES = 100_000, 1_000_000, 4000, 1000
NUM_KILLS = 5
PART_LINES = 10_000


def corpus_runs(setup: Setup) -> Iterator[list[Task]]:
    """A corpus in parts: throughput, memory, what a kill costs, and several processes."""
    yield [Task("throughput", "in parts", lambda: throughput(setup))]
    yield [Task("memory", "in parts", lambda: memory(setup))]
    yield [Task("kill", "in parts", lambda: kills(setup))]
    yield processes(setup)


def throughput(setup: Setup) -> dict:
    """Two processes that take turns: all lines in memory, and the same lines in parts."""
    num_lines = setup.lines or NUM_LINES
    options = {
        "source": str(write_corpus(setup, num_lines)),
        "threads": setup.threads,
        "part_lines": min(PART_LINES, max(1, num_lines // 4)),
        "folder": str(setup.folder / "throughput"),
    }
    kinds = ("in memory", "in parts")
    found = in_turns("benchmarks.corpus_runs", {kind: options | {"what": kind} for kind in kinds})
    (memory_seconds, memory), (seconds, parts) = (found[kind] for kind in kinds)
    return {
        "lines": num_lines,
        "lines/s": num_lines / seconds,
        "times decode in memory": memory_seconds / seconds,
        "cpu of decode in memory": parts["cpu_seconds"] / memory["cpu_seconds"],
        "same outputs": memory["checksum"] == parts["checksum"],
    }


def decode_in_memory(options: dict) -> dict:
    tokenizer, lines = (
        pybeam.load_tokenizer(corpus.MODEL),
        Path(options["source"]).read_text("utf-8"),
    )
    requests = [tokenizer.encode(line) for line in lines.splitlines()]
    decoder = pybeam.Decoder(job_of(options["threads"]).load(), ALGORITHM)
    # the kernels of all sizes are chosen, and the memory is there
    decoder.decode(requests[:100])
    cpu = begin()
    results = decoder.decode(requests)
    texts = [tokenizer.decode(result.hypotheses[0].tokens) + "\n" for result in results]
    return {"cpu_seconds": time.process_time() - cpu, "checksum": checksum("".join(texts))}


def decode_in_parts(options: dict) -> dict:
    job, folder = job_of(options["threads"]), Path(options["folder"])
    executor = Here(job.open())
    shutil.rmtree(folder, ignore_errors=True)
    work = Run(folder, job, Corpus([options["source"]]), part_lines=options["part_lines"])
    cpu = begin()
    work.execute(lambda num_parts: executor)
    return {"cpu_seconds": time.process_time() - cpu, "checksum": checksum(text_of(folder))}


def job_of(threads: int, algorithm: pybeam.Algorithm = ALGORITHM) -> Job:
    return Job((str(corpus.MODEL),), algorithm, device="cpu", threads=threads)


def begin() -> float:
    """Say that the work begins. Returns the seconds of CPU so far."""
    print(READY, flush=True)
    return time.process_time()


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def memory(setup: Setup) -> dict:
    """The second and the last quarter of a run, in a process that does nothing else."""
    num_lines = NUM_SHORT_LINES if setup.lines is None else setup.lines * 10
    folder = setup.folder / "memory"
    folder.mkdir(exist_ok=True)
    source = folder / "short.es"
    with open(source, "w") as file:
        file.writelines(f"{i}\n" for i in range(num_lines))
    options = {"what": "memory", "source": str(source), "part_lines": max(1, num_lines // 100)}
    sizes = in_process("benchmarks.corpus_runs", options | {"folder": str(folder / "out")})
    quarter = len(sizes) // 4
    second = statistics.mean(sizes[quarter : 2 * quarter])
    last = statistics.mean(sizes[-quarter:])
    return {"lines": num_lines, "second_mb": second / 1e6, "last over second": last / second}


def kills(setup: Setup) -> dict:
    """The cost of kills at random moments: seconds since the latest part was whole."""
    num_lines = setup.lines or NUM_KILL_LINES
    source, folder = write_corpus(setup, num_lines), setup.folder / "killed"
    rng, part_lines = random.Random(0), max(1, num_lines // 20)
    command = [
        *(sys.executable, "-m", "pybeam", "translate", "--model", str(corpus.MODEL)),
        *("--input", str(source), "--output-dir", str(folder), "--part-lines", str(part_lines)),
        *("--algorithm", "greedy", "--threads", "1", "--quiet"),
    ]
    lost, spans = [], []
    for _ in range(NUM_KILLS):
        process = subprocess.Popen(command, cwd=ROOT)
        wanted = len(parts_in(folder)) + rng.randint(1, 3)
        while len(parts_in(folder)) < wanted and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1) * (spans[-1] if spans else 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        times = sorted(path.stat().st_mtime for path in parts_in(folder))
        lost.append(time.time() - times[-1])
        spans += [b - a for a, b in itertools.pairwise(times[-wanted + 1 :])] or [0.1]
    whole = len(parts_in(folder))
    left = subprocess.run([*command[:-1]], cwd=ROOT, capture_output=True, text=True, check=True)
    decoded = int(left.stderr.split(" lines in")[0].split("\n")[-1].replace(",", ""))
    return {
        "lines": num_lines,
        "kills": NUM_KILLS,
        "most seconds lost": max(lost),
        "median seconds of a part": statistics.median(spans),
        # a part is whole with its name, and counted with its place in the manifest
        "parts lost": (decoded - (num_lines - whole * part_lines)) / part_lines,
    }


def processes(setup: Setup) -> list[Task]:
    source = write_corpus(setup, setup.lines or NUM_PROCESS_LINES)
    num_parts = 16
    part_lines = max(1, (setup.lines or NUM_PROCESS_LINES) // num_parts)
    seconds: dict[Plan, list[float]] = {}
    first = Plan(1, 2)

    def measure(plan: Plan) -> dict:
        options = {"what": "processes", "source": str(source), "part_lines": part_lines}
        options |= {"folder": str(setup.folder / "processes"), "plan": plan}
        found = in_process("benchmarks.corpus_runs", options)
        seconds.setdefault(plan, []).append(found.pop("seconds"))
        row = {"seconds": statistics.median(seconds[plan]), "repeats": len(seconds[plan]), **found}
        if first in seconds:
            row["times the first"] = statistics.median(seconds[first]) / row["seconds"]
        if Plan(1, 1) in seconds and first in seconds:
            one, two = (statistics.median(seconds[p]) for p in (Plan(1, 1), first))
            share = 2 * two / one - 1
            row["serial share"] = share
            row["model"] = relative_seconds(num_parts, first, share) / relative_seconds(
                num_parts, plan, share
            )
        return row

    plans = [first, Plan(1, 1), Plan(2, 1)]
    return [
        Task(
            "processes",
            f"{plan.processes} of {plan.threads}",
            lambda plan=plan: measure(plan),
            repeats=3,
        )
        for plan in plans
    ]


def write_corpus(setup: Setup, num_lines: int) -> Path:
    path = setup.folder / f"corpus-{num_lines}.es"
    if not path.exists():
        name = "bible-es-en/dev.es" if setup.is_tiny else "bible-es-en/train.es"
        source = folder_with(name, setup.data) / name
        verses = source.read_text("utf-8").splitlines()
        with open(path, "w", encoding="utf-8") as file:
            for i in range(num_lines):
                again, place = divmod(i, len(verses))
                file.write(f"{again} {verses[place]}\n" if again else f"{verses[place]}\n")
    return path


def parts_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


def text_of(folder: Path) -> str:
    return "".join(path.read_text("utf-8") for path in parts_in(folder))


class _Watch(Listener):
    """Memory at the end of every part, and when the first one began."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.start = 0.0
        self.pool: Processes | None = None
        self.members: dict = {}

    def beginning(self, share: float) -> None:
        self.start = time.perf_counter()

    def finished(self, part: FinishedPart, share: float) -> None:
        self.sizes.append(resident_bytes())
        # in the middle, when all have decoded
        if self.pool is not None and len(self.sizes) == 8:
            for member in self.pool._members:
                lines = Path(f"/proc/{member.process.pid}/smaps_rollup").read_text().splitlines()
                self.members[member.process.pid] = {
                    line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines[1:]
                }


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    sides = {"in memory": decode_in_memory, "in parts": decode_in_parts}
    if options["what"] in sides:
        print(json.dumps(sides[options["what"]](options)))
    else:
        watched(options)


def watched(options: dict[str, Any]) -> None:
    """A run whose memory and processes are watched."""
    watch = _Watch()
    is_memory = options["what"] == "memory"
    plan = Plan(1, 1) if is_memory else Plan(*options["plan"])
    algorithm = ONE_STEP if is_memory else ALGORITHM
    job = job_of(plan.threads, algorithm)
    executor: Here | Processes
    if plan.processes > 1:
        executor = watch.pool = Processes(job, plan.processes, plan.threads)
    else:
        executor = Here(job.open())
    gc.collect()
    shutil.rmtree(options["folder"], ignore_errors=True)
    work = Run(
        options["folder"],
        job,
        Corpus([options["source"]]),
        part_lines=options["part_lines"],
        listener=watch,
    )
    work.execute(lambda num_parts: executor)
    seconds = time.perf_counter() - watch.start
    if is_memory:
        print(json.dumps(watch.sizes))
        return
    found = {"seconds": seconds, "resident_mb": watch.sizes[-1] / 1e6}
    if watch.members:
        members = watch.members.values()
        own = [one["Private_Clean"] + one["Private_Dirty"] for one in members]
        found["private_mb of a process"] = max(own) / 1e6
        found["shared_mb of a process"] = (
            max(one["Rss"] - mine for one, mine in zip(members, own, strict=True)) / 1e6
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
