"""`Writer`: sources in, texts out: one or several, at once, as they come, or beside other callers."""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
    Sized,
)
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from pybeam.decoder import DecodeError, OnError
from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import overridden
from pybeam.tasks.loaded import Loaded, check_on_error, raised, several, start_service
from pybeam.tasks.output import Output
from pybeam.text.deltas import TextDeltas

if TYPE_CHECKING:
    from pybeam.serving import Service


class ToText(Protocol):
    """Makes a text of tokens, and of what is known of their source."""

    def __call__(self, tokens: Sequence[int], known: Any) -> str: ...


Answer = Output | list[Output] | Exception


@dataclass(frozen=True)
class Call:
    """One call of a task: how a source becomes a request, and tokens become a text.

    Args:
        request: makes requests. Their `id` is what `text` needs to know of the source.
        text: makes texts of tokens and that id.
        gives_list: whether every source is answered with a list of outputs.
    """

    request: Callable[[Any], Request]
    text: ToText
    gives_list: bool

    def answer(self, result: Result) -> Answer:
        """Return the texts of a result, or its error."""
        if result.error is not None:
            return result.error
        outputs = [Output(self.text(one.tokens, result.id), one) for one in result.hypotheses]
        return outputs if self.gives_list else next(iter(outputs), Output())


class Requests:
    """The requests of sources, made as they are asked for. A source that cannot become one fails alone.

    Attributes:
        failed: the results of those, by place.
    """

    def __init__(self, call: Call, sources: Iterable[Any]) -> None:
        self._call, self._sources = call, sources
        self.failed: dict[int, Result] = {}

    @classmethod
    def of(cls, call: Call, sources: Iterable[Any]) -> Requests:
        """Return them with a length if the sources have one, since a stream waits for those alone."""
        return (SizedRequests if isinstance(sources, Sized) else cls)(call, sources)

    def __iter__(self) -> Iterator[Request]:
        for place, source in enumerate(self._sources):
            request = made(self._call, place, source)
            if isinstance(request, Result):
                self.failed[place] = request
            else:
                yield replace(request, id=(place, request.id))


class SizedRequests(Requests):
    """Requests whose number is known."""

    def __len__(self) -> int:
        assert isinstance(self._sources, Sized)
        return len(self._sources)


def made(call: Call, place: int, source: Any) -> Request | Result:
    """Return the request of a source, or the result that says why there is none."""
    try:
        return call.request(source)
    # whatever a tokenizer raises, the other sources go on
    except Exception as error:
        return Result(place, None, [], "error", error=error)


class Writer(Loaded):
    """Base of tasks that answer a source with a text.

    One source has one answer, an `Output`, and a list of sources has a list of answers. A source that
    fails, such as a text that is too long for the model, does not harm the others.
    """

    @abstractmethod
    def _call(self, *args: Any, **options: Any) -> Call:
        """Return how sources are answered with these options. Raises ValueError for those that are wrong."""

    @abstractmethod
    def _is_one(self, sources: Any) -> bool:
        """Whether this is one source, and not several."""

    @abstractmethod
    def _check(self, source: Any) -> None:
        """Raise TypeError for what is no source."""

    def request(self, source: Any) -> Request:
        """Return the request of a source, as `decoder` takes it.

        Args:
            source: a single one, as for the method that gives whole answers.

        Raises:
            TypeError, ValueError: it is no source of this model.
        """
        return self._call().request(source)

    def text(self, request: Request, tokens: Sequence[int]) -> str:
        """Return the text of an output.

        Args:
            request: from `request`.
            tokens: of a hypothesis that a decoder has found for it.
        """
        return self._call().text(tokens, request.id)

    def _gives_list(self, n_best: int | None, max_length: int | None) -> bool:
        """Whether every source has several outputs.

        Raises:
            TypeError, ValueError: an option does not fit the search, whatever the source.
        """
        request = Request([], n_best=n_best, max_length=max_length)
        search = overridden(self.decoder.algorithm, request, None, 0)
        return search.n_best * search.num_groups > 1

    def _answers(
        self, sources: Any, search: Algorithm | None, on_error: OnError, how: dict[str, Any]
    ) -> Any:
        """Return the answer to one source, or a list of answers."""
        asked = self._asked(search, on_error)
        call = asked._call(**how)
        if self._is_one(sources):
            [result] = asked._results([sources], call)
            return raised(call.answer(result), on_error)
        sources = several(sources, self._check)
        total = len(sources) if isinstance(sources, Sized) else None
        with self._bar(total) as bar:
            results = []
            for result in asked._results(sources, call):
                results.append(result)
                bar.update()
        return _checked(results, call, on_error)

    def stream(
        self,
        sources: Any,
        *,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> Iterator[Any]:
        """Yield an answer while it is made, or the answers to several sources.

        One source gives the parts of its answer, each as soon as no later step can change it; joined they are
        the answer. Several give their answers in order, each as soon as it and all before it are known.
        Sources are read as they are needed, so there may be any number.

        Args:
            sources, search, options: as for the method that gives whole answers.
            on_error: "raise" raises the error of a source in its place; "return" puts the error there.

        Raises:
            TypeError, ValueError: as the method that gives whole answers; or one source is to have several
                outputs.
        """
        asked = self._asked(search, on_error)
        call = asked._call(**options)
        if self._is_one(sources):
            return asked._pieces(sources, call)
        results = asked._results(several(sources, self._check), call)
        return (raised(call.answer(result), on_error) for result in results)

    def astream(
        self,
        sources: Any,
        *,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Yield the same as `stream`, for ``async for``. The sources of all callers are decoded together.

        Args:
            sources: as for `stream`; or an asynchronous iterable of sources.
            search, on_error, options: as for `stream`.

        Raises:
            TypeError, ValueError: as `stream`.
        """
        asked = self._asked(search, on_error)
        call = asked._call(**options)
        if isinstance(sources, AsyncIterable):
            return asked._aresults(sources, call, on_error)
        if self._is_one(sources):
            return asked._apieces(sources, call)
        return asked._aresults(several(sources, self._check), call, on_error)

    def _asked(self, search: Algorithm | None, on_error: str) -> Self:
        """Return who answers with this search. Raises ValueError unless `on_error` means something."""
        check_on_error(on_error)
        return self if search is None else self.with_search(search)

    def _results(self, sources: Iterable[Any], call: Call) -> Iterator[Result]:
        """Yield the results of sources in their order."""
        requests = Requests.of(call, sources)
        found, place = requests.failed, 0
        for result in self.decoder.stream(requests):
            own, known = result.id
            found[own] = replace(result, index=own, id=known)
            while place in found:
                yield found.pop(place)
                place += 1
        while place in found:
            yield found.pop(place)
            place += 1

    def _pieces(self, source: Any, call: Call) -> Iterator[str]:
        """Yield the parts of the answer to one source as they become certain."""
        self._refuse_lists(call)
        request = call.request(source)
        deltas = TextDeltas(partial(call.text, known=request.id))
        for news in self.decoder.stream([request], partial=True):
            if isinstance(news, Result):
                piece = deltas.rest(raised(call.answer(news), "raise"))
            else:
                piece = deltas.more(news.tokens)
            if piece:
                yield piece

    def _refuse_lists(self, call: Call) -> None:
        if call.gives_list:
            raise ValueError(
                f"`stream` of one {self.item} gives the parts of one output, but several are asked for; put "
                f"the {self.item} into a list, or ask for one"
            )

    @cached_property
    def _service(self) -> Service:
        """Decodes the requests of all asynchronous callers together."""
        return start_service(copy.copy(self.decoder), self)

    async def _result(self, place: int, source: Any, call: Call) -> Result:
        request = made(call, place, source)
        if isinstance(request, Result):
            return request
        try:
            served = await self._service.decode(request)
        except Exception as error:
            return Result(place, place, [], "error", error=error)
        return replace(served.result, index=place)

    async def _aanswers(
        self,
        sources: Any,
        *,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> Any:
        """Return what `_answers` returns."""
        asked = self._asked(search, on_error)
        call = asked._call(**options)
        if self._is_one(sources):
            return raised(call.answer(await asked._result(0, sources, call)), on_error)
        # read before any work is there that nobody would await if reading failed
        listed = list(several(sources, self._check))
        work = [asked._result(*one, call) for one in enumerate(listed)]
        return _checked(await asyncio.gather(*work), call, on_error)

    async def _aresults(self, sources: Any, call: Call, on_error: OnError) -> AsyncIterator[Any]:
        from pybeam.serving.together import in_order

        def start(place: int, source: Any) -> Coroutine[Any, Any, Result]:
            return self._result(place, source, call)

        async for result in in_order(sources, start, self.decoder.schedule.queue_window):
            yield raised(call.answer(result), on_error)

    async def _apieces(self, source: Any, call: Call) -> AsyncIterator[str]:
        from pybeam.serving import ServedResult

        self._refuse_lists(call)
        request = call.request(source)
        deltas = TextDeltas(partial(call.text, known=request.id))
        async for event in self._service.stream(request):
            if isinstance(event, ServedResult):
                piece = deltas.rest(raised(call.answer(event.result), "raise"))
            else:
                piece = deltas.more(event.tokens)
            if piece:
                yield piece


def _checked(results: list[Result], call: Call, on_error: OnError) -> list[Answer]:
    """Return the answers, or raise for those that failed."""
    if on_error == "raise" and any(result.error is not None for result in results):
        raise DecodeError(results)
    return [call.answer(result) for result in results]
