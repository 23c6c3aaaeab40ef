"""`Worker`: a decoder that takes lines and gives texts."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch

from pybeam.corpus.forms import Format
from pybeam.corpus.parts import Counts, FinishedPart, Line, Part
from pybeam.corpus.tasks import Joined, MakeRequest
from pybeam.decoder import Decoder
from pybeam.request import Request, Result


@dataclass(frozen=True)
class Answer:
    """The outcome of one line.

    Attributes:
        result: with the line's number in the whole input, from 0, as its `index`.
        text: what is written for it, with the line end.
        warning: what the user should know although the line has not failed; "" for nothing.
        is_repeated: whether an equal line was decoded in its place.
    """

    result: Result
    text: str
    warning: str = ""
    is_repeated: bool = False


class _Ticket(NamedTuple):
    """The marks that a request carries through the decoder."""

    number: int
    id: object
    line: Line
    warning: str
    position: int = 0
    gathering: _Gathering | None = None


class _Gathering:
    """The results of a line with several requests, as they come."""

    def __init__(self, joined: Joined) -> None:
        self._template = joined.template
        self._results: list[Result | None] = [None] * len(joined.requests)

    def add(self, position: int, result: Result) -> Result | None:
        """Take one of them. Returns that of the line if it is the last.

        Its hypotheses are the best one of each, and its id is the template, or None if one is missing.
        """
        self._results[position] = result
        done = [one for one in self._results if one is not None]
        if len(done) < len(self._results):
            return None
        best = [one.hypotheses[0] for one in done if one.hypotheses]
        error = next((one.error for one in done if one.error is not None), None)
        return dataclasses.replace(
            done[-1],
            id=self._template if len(best) == len(done) else None,
            hypotheses=[] if error is not None else best,
            stop_reason=done[-1].stop_reason if error is None else "error",
            steps=sum(one.steps for one in done),
            expansions=sum(one.expansions for one in done),
            error=error,
        )


class Memo:
    """Remember what was found for the lines that came last, and who waits for what is being found.

    Threads may share it. Lines that wait are known by their numbers.

    Args:
        capacity: so many lines are remembered.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Line, Answer] = OrderedDict()
        self._askers: dict[Line, list[int]] = {}
        self._changing = threading.Lock()

    def ask(self, line: Line, asker: int) -> tuple[Answer | None, bool]:
        """Return what was found if it is known, and whether the asker is the one to find it.

        With neither, `tell` will name this asker.
        """
        with self._changing:
            if line in self._values:
                self._values.move_to_end(line)
                return self._values[line], False
            is_first = line not in self._askers
            if is_first:
                self._askers[line] = []
            else:
                self._askers[line].append(asker)
            return None, is_first

    def tell(self, line: Line, found: Answer, *, keeps: bool = True) -> list[int]:
        """Say what was found; returns those who wait for it. `keeps`: whether to remember it."""
        with self._changing:
            if keeps:
                self._values[line] = found
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            return self._askers.pop(line, [])

    def give_up(self) -> None:
        """Forget all searches: nothing more will be found for those who wait."""
        with self._changing:
            self._askers.clear()


class Worker:
    """Decodes lines. Whatever stands beside a line, its answer is the same.

    Args:
        decoder: its schedule says how many lines are read ahead.
        make_request: makes requests of lines.
        format_result: writes results.
        memory: so many distinct lines are remembered, and not decoded again while they are; 0: none.
    """

    def __init__(
        self, decoder: Decoder, make_request: MakeRequest, format_result: Format, memory: int = 0
    ) -> None:
        self._decoder, self._make_request, self._format = decoder, make_request, format_result
        self._memo = Memo(memory) if memory else None
        self.num_steps = 0  # of all that has been decoded

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._decoder.model.device

    def stream(self, lines: Iterable[Line], first: int = 0) -> Iterator[Answer]:
        """Yield an answer for every line, as they finish. The first line has the number `first`."""
        # a thread of the decoder fills it
        ready: deque[Answer] = deque()
        try:
            for result in self._decoder.stream(self._requests(lines, first, ready)):
                yield from self._answers(result)
                while ready:
                    yield ready.popleft()
        finally:
            self.num_steps += self._decoder.stats.steps
            if self._memo is not None:
                self._memo.give_up()
        yield from ready

    def run(self, part: Part) -> FinishedPart:
        """Decode a part. The same lines give the same outputs, wherever and how often it runs."""
        outputs = [""] * part.num_lines
        problems: dict[int, dict[str, str | int]] = {}
        counts, before = Counts(), self.num_steps
        for answer in self.stream(part.lines, part.first_line):
            result = answer.result
            outputs[result.index - part.first_line] = answer.text
            number = result.index + 1
            if result.error is not None:
                counts.failed += 1
                problems[number] = {"line": number, "error": str(result.error)}
            elif answer.warning:
                counts.warned += 1
                problems[number] = {"line": number, "warning": answer.warning}
            counts.tokens += len(result.hypotheses[0].tokens) if result.hypotheses else 0
            counts.expansions += 0 if answer.is_repeated else result.expansions
            counts.stop_reasons[result.stop_reason] += 1
        counts.lines, counts.steps = part.num_lines, self.num_steps - before
        return FinishedPart(
            part.index,
            part.first_line,
            part.checksum,
            outputs,
            [problems[number] for number in sorted(problems)],
            counts,
        )

    def _requests(
        self, lines: Iterable[Line], first: int, ready: deque[Answer]
    ) -> Iterator[Request]:
        """Make requests. A line that needs no decoding is `ready` at once."""
        for index, line in zip(count(first), lines, strict=False):
            if self._memo is not None:
                found, is_first = self._memo.ask(line, index)
                if found is not None:
                    ready.append(self._repeated(index, found))
                if not is_first:
                    continue
            try:
                made, warning = self._make_request(line)
            # whatever a tokenizer raises, the other lines go on
            except Exception as error:
                failed = Result(index, None, [], "error", error=error)
                ready.extend(self._answers_to_line(line, failed, ""))
                continue
            several = made.requests if isinstance(made, Joined) else (made,)
            gathering = _Gathering(made) if isinstance(made, Joined) else None
            for position, request in enumerate(several):
                ticket = _Ticket(index, request.id, line, warning, position, gathering)
                yield dataclasses.replace(request, id=ticket)

    def _answers(self, result: Result) -> Iterator[Answer]:
        """Answer the line of a result, if it was the last one that the line waited for."""
        ticket = result.id
        assert isinstance(ticket, _Ticket)
        own = dataclasses.replace(result, index=ticket.number, id=ticket.id)
        whole = own if ticket.gathering is None else ticket.gathering.add(ticket.position, own)
        if whole is not None:
            yield from self._answers_to_line(ticket.line, whole, ticket.warning)

    def _answers_to_line(self, line: Line, result: Result, warning: str) -> Iterator[Answer]:
        """Answer a line, and equal ones that wait for it."""
        found = Answer(result, self._format(result), warning)
        yield found
        if self._memo is not None:
            # an error may be one of the moment
            for index in self._memo.tell(line, found, keeps=result.error is None):
                yield self._repeated(index, found)

    def _repeated(self, index: int, found: Answer) -> Answer:
        result = dataclasses.replace(found.result, index=index)
        return Answer(result, self._format(result), found.warning, is_repeated=True)
