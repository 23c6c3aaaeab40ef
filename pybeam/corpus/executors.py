"""Who decodes parts: this process (`Here`), several of this machine (`Processes`), or a cluster.

`best_plan` chooses how cores are used, for `--processes auto`. A process with T threads takes
``s + (1 - s) / T`` of the time that one thread takes for a part, where s is the share of a step that only one
thread works on. P processes decode ``ceil(parts / P)`` rounds of parts. Loading is the same in every case,
because the weights are loaded once. So with C cores the choice is the P that makes
``ceil(parts / P) * (s + (1 - s) * P / C)`` smallest.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from pybeam.corpus.job import Job
from pybeam.corpus.parts import CorpusError, FinishedPart, Part
from pybeam.corpus.worker import Worker
from pybeam.platforms.system import ONLY_LINUX_FORKS, belong_to_parent, can_fork

# a part whose process ended is decoded again; if that process ends too, it is the part's fault
ATTEMPTS = 2
# benchmarks/corpus_runs.py measures it
SERIAL_SHARE = 0.1


class Executor(Protocol):
    """Decodes parts in any order. Reading the input and writing parts stay with the `Run`."""

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded.

        `parts` reads the input when it is asked for more, so an executor takes only as many as it keeps
        busy with. If it cannot go on, it raises; what it has yielded is kept. When the caller closes
        this generator, all work ends.
        """


class Here:
    """Decodes one part after another in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded."""
        for part in parts:
            yield self._worker.run(part)


@dataclass
class _Member:
    """One process of the pool."""

    process: BaseProcess
    connection: Connection
    part: Part | None = None


class Processes:
    """Decodes parts in several processes of this machine, the costliest of those at hand first.

    The model is loaded once, in one thread, before the processes begin as copies of this one. So all of them
    read the same pages of memory: the weights as they were packed for the kernels. A process has keys, values
    and beams of its own. ONNX graphs cannot be shared in this way; each process loads them.

    Args:
        job: what is done.
        num: processes.
        threads: CPU threads of each.

    Raises:
        OSError, TypeError, ValueError: as `Job.open`; the model is on a GPU, or this is not Linux.
    """

    def __init__(self, job: Job, num: int, threads: int = 1) -> None:
        if not can_fork():
            raise CorpusError(f"--processes must be left out here: {ONLY_LINUX_FORKS}")
        self._job, self._num, self._threads = job, num, threads
        # threads of OpenMP would not be there in a copy of this process
        torch.set_num_threads(1)
        self._worker: Worker | None = None
        if not any((Path(directory) / "decoder.onnx").exists() for directory in job.model_dirs):
            self._worker = job.with_threads(1).open()
            if self._worker.device.type != "cpu":
                raise CorpusError(
                    f"several processes cannot share a model on {self._worker.device}; leave --processes "
                    "out, or give --device cpu"
                )
        self._members: list[_Member] = []
        self._attempts: dict[int, int] = {}

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded. Parts in work are finished before an error is raised.

        Raises:
            CorpusError: the input cannot be read, decoding raised, or a part ended two processes.
        """
        try:
            self._members = [self._start() for _ in range(self._num)]
            source, waiting, error = iter(parts), list[Part](), None
            while True:
                if error is None:
                    error = self._take(source, waiting)
                self._hand_out(waiting)
                busy = [member.connection for member in self._members if member.part is not None]
                if not busy:
                    break
                for connection in wait(busy):
                    finished = self._receive(connection, waiting)  # type: ignore[arg-type]
                    if finished is not None:
                        yield finished
            if error is not None:
                raise error
        finally:
            for member in self._members:
                member.process.kill()
            for member in self._members:
                member.process.join()
                member.connection.close()
            self._members.clear()

    def _take(self, source: Iterator[Part], waiting: list[Part]) -> CorpusError | None:
        """Read parts until all processes have work and as many wait. Returns why no more can be read."""
        idle = sum(member.part is None for member in self._members)
        try:
            while len(waiting) < idle + self._num:
                part = next(source, None)
                if part is None:
                    break
                waiting.append(part)
        except CorpusError as error:
            return error
        return None

    def _hand_out(self, waiting: list[Part]) -> None:
        for member in self._members:
            if member.part is None and waiting:
                # what takes long must not come last, when others have nothing left to do
                part = max(waiting, key=lambda one: one.cost)
                waiting.remove(part)
                member.part = part
                # a process that has ended is noticed when its answer is awaited
                with contextlib.suppress(OSError):
                    member.connection.send(part)

    def _receive(self, connection: Connection, waiting: list[Part]) -> FinishedPart | None:
        member = next(one for one in self._members if one.connection is connection)
        part, member.part = member.part, None
        assert part is not None
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            self._replace(member, part)
            waiting.append(part)
            return None
        if isinstance(answer, str):
            raise CorpusError(f"{part.span}: {answer}")
        assert isinstance(answer, FinishedPart)
        return answer

    def _replace(self, member: _Member, part: Part) -> None:
        """Start another process in the place of one that has ended."""
        member.process.join()
        self._attempts[part.index] = self._attempts.get(part.index, 0) + 1
        if self._attempts[part.index] == ATTEMPTS:
            raise CorpusError(
                f"two processes ended while they decoded {part.span} (exit code "
                f"{member.process.exitcode}); is the memory too small for so many --processes?"
            )
        member.connection.close()
        self._members.remove(member)
        self._members.append(self._start())

    def _start(self) -> _Member:
        # a copy of this process, which has the weights
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        # copies of these would keep a pipe open whose owner has ended
        others = [ours, *(member.connection for member in self._members)]
        process = context.Process(target=self._serve, args=[theirs, others], daemon=True)
        with warnings.catch_warnings():
            # threads of libraries sleep, and hold nothing that a copy needs
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Member(process, ours)

    def _serve(self, connection: Connection, others: list[Connection]) -> None:
        """Decode what comes until the other side is closed. This is the life of a process of the pool."""
        belong_to_parent()
        for other in others:
            other.close()
        torch.set_num_threads(self._threads)
        worker = self._worker
        with contextlib.suppress(EOFError, OSError):
            while True:
                part = connection.recv()
                try:
                    worker = worker or self._job.with_threads(self._threads).open()
                    answer: FinishedPart | str = worker.run(part)
                except Exception as error:
                    answer = f"{type(error).__name__}: {error}"
                connection.send(answer)


class Plan(NamedTuple):
    """So many processes of so many threads."""

    processes: int
    threads: int


def relative_seconds(num_parts: int, plan: Plan, serial_share: float = SERIAL_SHARE) -> float:
    """Return how long so many parts take, in units of one part on one thread."""
    rounds = math.ceil(num_parts / plan.processes)
    return rounds * (serial_share + (1 - serial_share) / plan.threads)


def best_plan(num_parts: int, cores: int) -> Plan:
    """Return the fastest use of the cores; of equal ones that with the fewest processes."""
    plans = [Plan(num, cores // num) for num in range(1, cores + 1)]
    return min(plans, key=lambda plan: relative_seconds(num_parts, plan))
