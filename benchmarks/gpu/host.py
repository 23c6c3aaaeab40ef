"""The host's time around captured steps: per step, and per source that comes and goes. Needs no GPU.

    python -m benchmarks.gpu.host [--beside FOLDER] [--repeats 5]

A replay takes no time here: it only ages the sources by a step, and what it reports is made up. Time in the
backend's operators and in the encoder's layers is left out too. The rest is Python, and torch's small
operators, which on a GPU are launches. Streams of two output lengths tell steps and sources apart. A source
costs most where few come at a time, since what a group of newcomers costs is shared by few: source_us has its
share in it. Batches of two sizes tell the two apart: group_us is what a group costs that comes and goes
together, however many it has, and further_us what each of its sources adds to that.

`--beside` names another checkout, whose library is measured in turn with this one, by this file.

The table goes to host.json, in $OUT if that is set, else in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parents[2]
IDENTITY = ("side", "schedule", "sources")
TIMES = ("step_us", "source_us", "group_us", "further_us")
# a worker imports the library of one checkout, and this file of its own
WORKER = (
    "import sys; sys.path[:0] = [{library!r}]; import pybeam; sys.path[0] = {here!r}; "
    "from benchmarks.gpu.host import measure; measure({requests})"
)
WIDTH = 5
SOURCE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
# steps cost what a stream of outputs of one length takes longer than one of another
SHORT, LONG = 8, 32
# a stream has so many groups of newcomers at most
GROUPS = 16
# (schedule, sources live at once)
CASES = (("Batch", 128), ("Batch", 16), ("Batch", 1), ("Fifo", 128), ("Fifo", 16))


class Stopwatch:
    """Sums the time within functions that it has wrapped."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begin = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.thread_time() - begin

        return timed


class Script:
    """In place of kernels: sources age by a step in each replay, and end at lengths that are given."""

    def __init__(self, watch: Stopwatch, lengths: list[int]) -> None:
        self._watch, self._lengths = watch, cycle(lengths)
        self._age = np.zeros(1 << 12, dtype=np.int32)
        self._length = np.zeros(1 << 12, dtype=np.int32)
        self._path = torch.arange(1 << 16, dtype=torch.int32).view(-1, 64) % 97 + 3

    def backend(self) -> SimpleNamespace:
        """The native operators without the program of a CPU; those that see beams are made up."""
        from pybeam.backends import native, reference
        from pybeam.backends.tensor_beams import BeamFunctions, TensorBeams

        made_up = reference.BEAM_FUNCTIONS._replace(
            open=self._open,
            select=native.select,
            close=lambda *args: None,
            backtrace=self._backtrace,
        )
        own = {
            name: self._watch.wrap(value)
            if callable(value) and not isinstance(value, type)
            else value
            for name, value in vars(native).items()
        }
        functions = BeamFunctions(*map(self._watch.wrap, made_up))
        own |= {"beam_program": partial(TensorBeams, functions), "skips_forced_logits": False}
        return SimpleNamespace(**own)

    def __call__(self, step: object, slot: Tensor) -> Any:
        """In place of a capture."""
        from pybeam.engine.cuda_graphs import Captured
        from pybeam.state.report import Report

        report = torch.zeros(Report.size(slot.numel()), dtype=torch.int32)
        report[0] = 1 << 20
        lines = report.numpy()[1:].reshape(slot.numel(), -1)
        slots = slot.numpy()

        def replay() -> None:
            self._age[slots[slots > 0]] += 1
            age = self._age[slots]
            is_done = age >= self._length[slots]
            # reason, rows, depth, finished, steps, expansions, pages
            columns = 2 * is_done, WIDTH * ~is_done, age, WIDTH * is_done, age, WIDTH * age, 1
            for i, column in enumerate(columns):
                lines[:, i] = column

        return Captured(self._watch.wrap(replay), slot, report)

    def renew(self) -> None:
        """Nothing is kept."""

    def _open(self, tree: object, beams: object, slot: Tensor, *args: object) -> None:
        for p in slot.tolist():
            self._age[p], self._length[p] = 0, next(self._lengths)

    def _backtrace(
        self, values: Tensor, parent: Tensor, owner: Tensor, node: Tensor, capacity: int
    ) -> tuple[Tensor, Tensor]:
        length = torch.from_numpy(self._age[owner.numpy()])
        return self._path[: owner.numel(), :capacity], length


def graphs(script: Script) -> Any:
    """Captured steps, of which none runs without a graph first."""
    from pybeam.engine.cuda_graphs import StepGraphs

    class Scripted(StepGraphs):
        def get(self, *args: Any) -> Any:
            found = None
            while found is None:
                found = super().get(*args)
            return found

    return Scripted(script)


def streams(
    schedule: Any, model: Any, lengths: list[int], num: int
) -> Iterator[tuple[float, int, int]]:
    """Yield seconds of the host, steps and refills of streams of so many sources."""
    import pybeam
    from pybeam.engine.engine import Engine, StreamOptions
    from pybeam.engine.stats import Stats
    from pybeam.engine.streaming import Stream
    from pybeam.engine.workspace import Workspace

    watch = Stopwatch()
    script = Script(watch, lengths)
    work = Workspace(model, pybeam.fixed_beam(WIDTH), script.backend())
    work.graphs = graphs(script)
    _stub_encoder(work.session, watch)
    requests = [SOURCE] * num
    while True:
        stats = Stats()
        watch.seconds = 0.0
        gc.collect()
        begin = time.thread_time()
        engine = Engine(work, schedule, stats, StreamOptions(reads_late=True))
        results = list(Stream(engine.run(requests), torch.device("cpu")))
        seconds = time.thread_time() - begin - watch.seconds
        assert len(results) == num and not any(result.error for result in results)
        assert all(result.hypotheses for result in results)
        yield seconds, stats.steps, stats.refills


def _stub_encoder(session: Any, watch: Stopwatch) -> None:
    """Leave the encoder's layers out of the time."""
    model, encoder = session.model, session._fused_encoder
    session._fused_encoder = SimpleNamespace(encode=watch.wrap(encoder.encode))
    model.cross_key_value = watch.wrap(model.cross_key_value)


def measure(num_requests: int) -> None:
    """Print microseconds per step and per source of every case, as a line of JSON."""
    import pybeam
    from tests.support.tiny_models import save_tiny_model

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder), "m2m_100")
        model = pybeam.load_model(folder, device="cpu")
    # what stays is not looked at again before every stream
    gc.collect()
    gc.freeze()
    rows, step_seconds = [], {}
    for name, n in CASES:
        num = max(32, min(num_requests, GROUPS * n))
        schedule = getattr(pybeam, name)(n)
        if n not in step_seconds:
            equal = [least(streams(pybeam.Batch(n), model, [x], num)) for x in (SHORT, LONG)]
            (short, few, _), (long, many, _) = equal
            step_seconds[n] = (long - short) / (many - few)
        # outputs of all lengths, so that some sources leave in every step
        lengths = [SHORT] if name == "Batch" else list(range(SHORT // 2, 3 * SHORT))
        seconds, steps, groups = least(streams(schedule, model, lengths, num))
        source_us = 1e6 * (seconds - steps * step_seconds[n]) / num
        own = {"schedule": name, "sources": n, "at_a_time": round(num / groups, 1)}
        rows.append({**own, "step_us": 1e6 * step_seconds[n], "source_us": source_us})
    print(json.dumps([{**row, **parts(rows)} for row in rows]))


def parts(rows: list[dict]) -> dict[str, float]:
    """Microseconds of a group, and of each source in it, from the two largest batches."""
    batches = [row for row in rows if row["schedule"] == "Batch"]
    pairs = sorted((row["at_a_time"], row["at_a_time"] * row["source_us"]) for row in batches)
    (few, small), (many, large) = pairs[-2:]
    further = (large - small) / (many - few)
    return {"group_us": small - few * further, "further_us": further}


def least(stream: Iterator[tuple[float, int, int]], num: int = 15) -> tuple[float, int, int]:
    """The fastest of several, after arrays have grown and graphs have been made."""
    for _ in range(2):
        next(stream)
    return min(next(stream) for _ in range(num))


def main() -> None:
    from benchmarks.journal import Journal, results_folder

    options = _options()
    sides = {"this": HERE} | ({"beside": options.beside.resolve()} if options.beside else {})
    found: dict[tuple, list[dict]] = {}
    for _ in range(options.repeats):  # they take turns, as the machine is never the same
        for side, library in sides.items():
            program = WORKER.format(library=str(library), here=str(HERE), requests=options.requests)
            command = [sys.executable, "-c", program]
            run = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
            if run.returncode:
                sys.exit(run.stderr)
            for row in json.loads(run.stdout.splitlines()[-1]):
                row = {"side": side, **row}
                found.setdefault(tuple(row[name] for name in IDENTITY), []).append(row)
    journal = Journal(results_folder("cpu"), "host", IDENTITY)
    rows = []
    for runs in found.values():
        times = {name: median(run[name] for run in runs) for name in TIMES}
        rows.append({**runs[0], **times})
        journal.add(rows[-1])
    journal.finish(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each side")
    parser.add_argument("--requests", type=int, default=512, help="sources of a stream at most")
    return parser.parse_args()


if __name__ == "__main__":
    main()
