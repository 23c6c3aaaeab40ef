"""Jobs that ask a decoder: each asks, waits for all answers, and asks again. Many jobs share one stream.

A job is a generator. It yields a list of questions and is sent their answers, or it yields a list of other
jobs and is sent what these return. So the code of one recording is written as if the decoder
had no other recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from pybeam.engine.arrivals import Arrivals
from pybeam.request import Request, Result
from pybeam.speech.whisper.requests import Question, RequestBuilder

Returned = TypeVar("Returned")
# a generator that asks, and returns something
Asking = Generator[list[Any], list[Any], Returned]
WindowJob = Asking[Any]


@dataclass(eq=False)
class _Task:
    """A job that is going on. Its parent waits for what the job returns."""

    job: WindowJob
    parent: _Task | None = None
    place: int = 0
    answers: list[Any] = field(default_factory=list)
    num_missing: int = 0
    error: Exception | None = None


class WindowJobs(Arrivals):
    """The requests of many jobs, for `Decoder.stream`. Their answers bring the next requests.

    Args:
        jobs: one for each recording. Each deals with its own errors.
        builder: turns questions into requests, and results into answers.
        most: recordings that are transcribed at a time.
    """

    keeps_order = True

    def __init__(self, jobs: Iterator[WindowJob], builder: RequestBuilder, most: int) -> None:
        self._jobs, self._builder, self._most = jobs, builder, most
        self._ready: deque[tuple[_Task, int, Question]] = deque()
        self._waiting: deque[_Task] = deque()
        self._asked: dict[int, tuple[_Task, int, int, Question]] = {}
        self._num_asked = 0
        self._num_active = 0
        self.error: BaseException | None = None  # what reading the jobs raised
        # nobody asks before an answer comes
        self.has_news = np.zeros(1, dtype=np.bool_)

    def next(self, may_wait: bool) -> tuple[int, Request] | None:
        """Take the next request, with its index. More jobs begin if none has one."""
        while not self._ready and self._begin():
            pass
        if not self._ready or self._builder.token_log_probs.is_full:
            assert not (may_wait and self._asked), "answers must come before more is asked"
            return None
        task, place, question = self._ready.popleft()
        request, line = self._builder.request(question)
        index = self._num_asked
        self._num_asked += 1
        self._asked[index] = task, place, line, question
        return index, request

    def answer(self, result: Result) -> None:
        """Take the result of a request. The job goes on when all that it waits for is there."""
        task, place, line, question = self._asked.pop(result.index)
        answer = self._builder.answer(question, line, result)
        self._tell(task, place, answer, result.error)

    def close(self) -> None:
        """Give back what requests hold that were not answered, because nobody waits for them any more."""
        for _, _, line, _ in self._asked.values():
            self._builder.token_log_probs.read(line)
        self._asked.clear()

    def _begin(self) -> bool:
        """Begin a job, if there is one and not too many are going on."""
        if self._waiting:
            self._go_on(self._waiting.popleft())
            return True
        if self._num_active >= self._most or self.error is not None:
            return False
        try:
            job = next(self._jobs, None)
        except Exception as error:
            # recordings that came before are finished first
            self.error = error
            return False
        if job is None:
            return False
        self._num_active += 1
        self._go_on(_Task(job))
        return True

    def _go_on(self, task: _Task) -> None:
        """Let a task go on until it asks again, or is done."""
        answers, error = task.answers, task.error
        task.answers, task.error = [], None
        try:
            if error is not None:
                asked = task.job.throw(error)
            elif answers:
                asked = task.job.send(answers)
            else:
                asked = next(task.job)
        except StopIteration as stop:
            self._finish(task, stop.value, None)
            return
        except Exception as raised:
            self._finish(task, None, raised)
            return
        task.answers, task.num_missing = [None] * len(asked), len(asked)
        assert asked, "a job must ask something"
        for place, one in enumerate(asked):
            if isinstance(one, Question):
                self._ready.append((task, place, one))
            else:
                # they begin when the decoder has room, since each may hold features
                self._waiting.append(_Task(one, task, place))

    def _finish(self, task: _Task, value: Any, error: Exception | None) -> None:
        if task.parent is not None:
            self._tell(task.parent, task.place, value, error)
            return
        self._num_active -= 1
        if error is not None:
            raise error

    def _tell(self, task: _Task, place: int, value: Any, error: Exception | None) -> None:
        task.answers[place] = value
        task.error = task.error or error
        task.num_missing -= 1
        if not task.num_missing:
            self._go_on(task)
