"""`RayExecutor`: the parts of a corpus are decoded by actors of a Ray cluster."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from ray.exceptions import RayError, RayTaskError

import ray
from pybeam.arguments import whole
from pybeam.corpus import CorpusError, FinishedPart, Job, Part
from pybeam.ray.weights import packed, unpacked

# a part that so many processes did not survive is at fault itself
MAX_LOSSES = 4


class RayExecutor:
    """Decodes parts on the cluster that this process is connected to.

    Each actor holds the model and has one part at a time. A part whose actor is lost, with its machine or
    alone, is given to another one. Nothing of it was written, and it comes out the same, so the loss costs
    time and nothing else. Weights lie once in the memory of each machine, unless GPUs hold them. Files of
    the model are read on every machine, under the same name.

    Args:
        job: what is done with every line. With a CUDA device, each actor takes a GPU.
        num_actors: None: as many as the cluster has room for now.

    Raises:
        OSError, TypeError, ValueError: the model cannot be loaded, or options do not fit it.
    """

    def __init__(self, job: Job, num_actors: int | None = None) -> None:
        if num_actors is not None:
            whole("num_actors", num_actors, 1)
        self._job = job
        self._num_cpus, self._num_gpus = job.threads or 1, int(job.device.startswith("cuda"))
        self._num_actors = num_actors or self._room()
        self._content = None
        if not self._num_gpus:
            model = job.load()
            # here, where an error is the caller's
            job.worker(model)
            self._content = ray.put(packed(model))

    def run(self, parts: Iterable[Part]) -> Generator[FinishedPart, None, None]:
        """Yield every part when it has been decoded.

        Raises:
            CorpusError: actors do not start, or a part ends each process that decodes it.
        """
        yield from _Crew(self._start, self._num_actors, iter(parts)).run()

    def _start(self) -> Any:
        actor = ray.remote(_Actor).options(num_cpus=self._num_cpus, num_gpus=self._num_gpus)
        job = self._job.with_threads(self._num_cpus)
        return actor.remote(job) if self._content is None else actor.remote(job, self._content)

    def _room(self) -> int:
        """Return how many actors the cluster has resources for, at least 1."""
        has = ray.cluster_resources()
        room = has.get("CPU", 0) // self._num_cpus
        if self._num_gpus:
            room = min(room, has.get("GPU", 0) // self._num_gpus)
        return max(1, int(room))


class _Actor:
    """A process that decodes: Ray copies nothing of `content` into it."""

    def __init__(self, job: Job, content: tuple[bytes, list[np.ndarray]] | None = None) -> None:
        if content is None:
            self._worker = job.open()
        else:
            torch.set_num_threads(job.threads or 1)
            self._worker = job.worker(unpacked(*content))

    def is_ready(self) -> None:
        """Answer, which an actor does only when it has been made."""

    def run(self, part: Part) -> FinishedPart:
        """Decode a part."""
        return self._worker.run(part)


class _Crew:
    """Actors, and the parts that they have. An actor gets its first part when it is ready.

    Args:
        start: starts an actor.
        num_actors: that live at a time.
        parts: what they decode.
    """

    def __init__(self, start: Callable[[], Any], num_actors: int, parts: Iterator[Part]) -> None:
        self._start, self._parts = start, parts
        # by the answer that is awaited: the actor, and its part; None: it is starting
        self._awaited: dict[Any, tuple[Any, Part | None]] = {}
        self._idle: list[Any] = []
        self._waiting: deque[Part] = deque()
        self._losses: Counter[int | None] = Counter()
        for _ in range(num_actors):
            self._hire()

    def run(self) -> Iterator[FinishedPart]:
        """Yield every part when it has been decoded. When it ends, so do the actors."""
        try:
            while True:
                self._give_out()
                if not self._waiting and not any(part for _, part in self._awaited.values()):
                    return
                finished = self._wait()
                if finished is not None:
                    # the actor works while this part is being written
                    self._give_out()
                    yield finished
        finally:
            for actor in (*self._idle, *(actor for actor, _ in self._awaited.values())):
                ray.kill(actor)

    def _hire(self) -> None:
        actor = self._start()
        self._awaited[actor.is_ready.remote()] = actor, None

    def _give_out(self) -> None:
        """Give parts to idle actors; one more waits, if there is one."""
        while True:
            if not self._waiting:
                self._waiting.extend(itertools.islice(self._parts, 1))
            if not self._waiting or not self._idle:
                return
            actor, part = self._idle.pop(), self._waiting.popleft()
            self._awaited[actor.run.remote(part)] = actor, part

    def _wait(self) -> FinishedPart | None:
        """Wait until something happens. Returns a part that has been decoded, if that is it."""
        [answer], _ = ray.wait(list(self._awaited), num_returns=1)
        actor, part = self._awaited.pop(answer)
        try:
            finished = ray.get(answer)
        except RayTaskError:  # the code is wrong, and no machine is lost
            raise
        except RayError as error:
            self._replace(part, error)
            return None
        self._losses.pop(None if part is None else part.index, None)
        self._idle.append(actor)
        return finished

    def _replace(self, part: Part | None, error: RayError) -> None:
        """Start another actor for one that is lost, and let its part wait."""
        key = None if part is None else part.index
        self._losses[key] += 1
        if self._losses[key] == MAX_LOSSES:
            what = "processes on the cluster do not start"
            if part is not None:
                what = f"{part.span} end each process that decodes them"
            raise CorpusError(f"{what}: {error}") from error
        if part is not None:
            self._waiting.appendleft(part)
        self._hire()
