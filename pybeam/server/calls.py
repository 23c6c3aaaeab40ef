"""The steps that endpoints share: from the body of a request to its results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, TypeVar

from fastapi import Depends
from fastapi import Request as HTTPRequest
from fastapi.responses import StreamingResponse
from starlette.requests import HTTPConnection

from pybeam.decoder import Decoder
from pybeam.processors.base import Processor
from pybeam.request import Request
from pybeam.server import schemas
from pybeam.server.auth import Keys, caller_of, charge, client_of
from pybeam.server.charges import charge_requests, charged, log_fields, num_generated
from pybeam.server.detector import Detector
from pybeam.server.errors import APIError, from_service
from pybeam.server.files import Files
from pybeam.server.grammars import Asked, Grammars
from pybeam.server.limits import Places
from pybeam.server.metrics import Metrics
from pybeam.server.model_manager import ModelManager
from pybeam.server.models import ServedModel, ServedModels
from pybeam.server.phrases import phrases_of
from pybeam.server.recordings import RequestSound
from pybeam.server.settings import Settings
from pybeam.server.sse import Event, Events, Write, streamed, unless_gone
from pybeam.serving import (
    DeadlineExceeded,
    EngineStalled,
    QueueFull,
    ServedResult,
    ServedStream,
    Service,
    ServiceClosed,
)
from pybeam.serving.bell import awaited
from pybeam.serving.options import Options
from pybeam.serving.sound_process import SoundProcesses
from pybeam.serving.together import together
from pybeam.serving.transcripts import Decode
from pybeam.speech import SoundFile

# characters that are tokenised at once; more would hold up all other requests
MAX_INLINE = 4096
T = TypeVar("T")


@dataclass(frozen=True)
class Calls:
    """The service, and what endpoints know beside it."""

    service: Service
    models: ServedModels
    settings: Settings
    keys: Keys
    metrics: Metrics
    recordings: Places
    manager: ModelManager
    # None: this process decodes recordings itself
    sounds: SoundProcesses | None = None
    detector: Detector = field(default_factory=Detector)
    files: Files = field(default_factory=Files)
    grammars: Grammars = field(default_factory=Grammars)

    def pick(
        self,
        http: HTTPConnection,
        name: str | None,
        source: str | None = None,
        target: str | None = None,
        *,
        takes_sound: bool | None = None,
    ) -> ServedModel:
        """Give a request the model of this name, or else the first that takes these languages.

        The request has it until it is answered, even if the model is unloaded or another takes its name.

        Raises:
            APIError: there is none.
        """
        model = self.models.pick(name, source, target, takes_sound=takes_sound)
        model.gate.enter(http.scope)
        return model

    async def encode(
        self, model: ServedModel, text: str, languages: tuple[str | None, str | None], field: str
    ) -> list[int]:
        """Return the source ids of a text in these languages, with the prefix that they ask for.

        Raises:
            APIError: the model does not know the languages, or the text is too long.
        """
        # those of models with tags may have to be read from their files
        run: Any = asyncio.to_thread if model.has_tags else _at_once
        tokenizer = await run(model.tokenizer, *languages)
        if not text:
            return []
        run = asyncio.to_thread if len(text) > MAX_INLINE else _at_once
        tokens: list[int] = await run(tokenizer.encode, text)
        self.check_tokens(tokens, field)
        return tokens

    def check_tokens(self, tokens: Sequence[Any], field: str) -> None:
        """Raise APIError if a source is too long."""
        most = self.settings.max_source_tokens
        if len(tokens) > most:
            problem = f"`{field}` must have at most {most} tokens, but has {len(tokens)}"
            raise APIError(400, problem, field, code="context_length_exceeded")

    def check_number(self, sources: Sequence[Any], field: str) -> None:
        """Raise APIError if one request has too many sources, or none."""
        most = self.settings.max_sources
        if not 1 <= len(sources) <= most:
            raise APIError(400, f"`{field}` must be 1 to {most}, but are {len(sources)}", field)

    def check_width(self, **values: int | None) -> None:
        """Raise APIError if a width or a number of outputs is larger than the server allows."""
        most = self.settings.max_width
        for name, value in values.items():
            if value is not None and value > most:
                raise APIError(400, f"`{name}` must be at most {most}, but is {value}", name)

    async def overrides(
        self, http: HTTPRequest, model: ServedModel, body: schemas.Search
    ) -> dict[str, Any]:
        """Return the arguments of a `pybeam.Request` that a body asks of a model.

        Raises:
            APIError: one is larger than the server allows, a processor does not exist, or a grammar is wrong.
        """
        self.check_width(width=body.width, n_best=body.n_best)
        constraints = await self.constraints(http, model, body, body.grammar)
        constraints += await phrases_of(model, body.must_contain)
        return body.overrides(model.decoder.algorithm, constraints)

    async def constraints(
        self, http: HTTPRequest, model: ServedModel, body: schemas.Serving, wish: Asked | None
    ) -> list[Processor]:
        """Return the processor for the grammar that a body asks for, in a list; none if it asks for none.

        Raises:
            APIError: the grammar is wrong, the time is over, too many of the client's wait, or it has gone.
        """
        if wish is None:
            return []
        options = self._serving(http, model, body)
        seconds, spent = options["timeout"], time.monotonic() - options["since"]
        found = self.grammars.constraints(http, model, wish, seconds, spent)
        return await unless_gone(http, found)

    def refusal(
        self, http: HTTPRequest, model: ServedModel, body: schemas.Serving
    ) -> APIError | None:
        """Return the answer to a request that the service would refuse at once, however small it is.

        Raises:
            APIError: the body asks for more than the server allows.
        """
        options = self._serving(http, model, body)
        try:
            self.service.check_room(**options)
        except (QueueFull, DeadlineExceeded, EngineStalled) as error:
            return from_service(error)
        except ServiceClosed:
            # another may have taken its name
            return None
        return None

    async def decode(
        self,
        http: HTTPRequest,
        model: ServedModel,
        requests: Sequence[Request],
        body: schemas.Serving,
    ) -> list[ServedResult]:
        """Decode requests side by side; all are cancelled if one fails or the client goes.

        Raises:
            APIError: one failed.
        """
        options = self._serving(http, model, body)
        http.state.log_fields = {"model": model.name, "sources": len(requests)}
        [results] = await self.all_of(http, [self._decoded(http, model, requests, options)])
        http.state.log_fields = log_fields(model, results)
        return results

    async def _decoded(
        self,
        http: HTTPConnection,
        model: ServedModel,
        requests: Sequence[Request],
        options: Options,
    ) -> list[ServedResult]:
        """Decode requests; nothing is charged unless the service takes all of them."""
        waiting: list[Future[ServedResult]] = []
        try:
            for request in requests:
                waiting.append(self.service.submit(request, **options))
        except Exception:
            for one in waiting:
                one.cancel()
            raise
        charge_requests(http, model, requests)
        results = await together([awaited(one) for one in waiting])
        charge(http, "tokens", sum(num_generated(one) for one in results))
        return results

    async def all_of(self, http: HTTPRequest, work: Sequence[Awaitable[T]]) -> list[T]:
        """Await work of the service; all of it is cancelled if some fails or the client goes.

        Raises:
            APIError: some failed.
        """
        try:
            return await unless_gone(http, together(work))
        except Exception as error:
            raise from_service(error) from error

    async def begin(
        self,
        http: HTTPRequest,
        model: ServedModel,
        requests: Sequence[Request],
        body: schemas.Serving,
        *,
        best_so_far: bool = False,
    ) -> list[AsyncGenerator[Event, None]]:
        """Let the service take requests, and return what each of them says until it has its result.

        Nothing is charged unless the service takes all of them.

        Raises:
            APIError: it does not.
        """
        options = self._serving(http, model, body)
        begun: list[ServedStream] = []
        try:
            for request in requests:
                begun.append(self.service.stream(request, best_so_far=best_so_far, **options))
        except Exception as error:
            for one in begun:
                await one.aclose()
            raise from_service(error) from error
        charge_requests(http, model, requests)
        return [charged(http, model, coming) for coming in begun]

    async def stream(
        self,
        http: HTTPRequest,
        model: ServedModel,
        request: Request,
        body: schemas.Serving,
        write: Write,
        *,
        best_so_far: bool = False,
    ) -> StreamingResponse:
        """Decode one request, and send what `write` makes of what is certain and of the result.

        Raises:
            APIError: it failed before anything was certain.
        """
        [events] = await self.begin(http, model, [request], body, best_so_far=best_so_far)
        http.state.log_fields = {"model": model.name, "sources": 1}
        return await self.send(http, model, events, write)

    async def send(
        self, http: HTTPRequest, model: ServedModel, events: Events, write: Write
    ) -> StreamingResponse:
        """Send what `write` makes of events.

        Raises:
            APIError: the first one did not come.
        """
        start = time.perf_counter()

        def on_first() -> None:
            self.metrics.began_to_stream(model.name, time.perf_counter() - start)

        return await streamed(http, events, write, on_first)

    def parts(
        self,
        http: HTTPConnection,
        model: ServedModel,
        body: schemas.Serving,
        late: str,
        decoder: Decoder | None = None,
    ) -> Decode:
        """Return what decodes the parts of one call, all of them in the time of one request.

        Args:
            http, model, body: the call.
            late: what has not happened if the time is over.
            decoder: of the model, if it is another.
        """
        options = self._serving(http, model, body)
        options["model"] = model.decoder if decoder is None else decoder
        # a part that is cut would be taken for a whole one
        options["on_deadline"] = "raise"
        seconds = options["timeout"] or 0.0
        end = options.pop("since") + seconds

        async def decode(request: Request) -> ServedResult:
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    f"{late} within {seconds:g} seconds; send it in parts, or start the server with a "
                    "larger --timeout"
                )
            own: Options = {**options, "timeout": left}
            [served] = await self._decoded(http, model, [request], own)
            return served

        return decode

    @contextlib.contextmanager
    def sound(
        self, http: HTTPRequest, file: BinaryIO, sampling_rate: int
    ) -> Iterator[RequestSound]:
        """Return the recording in an uploaded file, at this rate; seconds are charged as they are read."""
        loop, most = asyncio.get_running_loop(), self.settings.max_audio_seconds

        def count(seconds: float) -> None:
            loop.call_soon_threadsafe(charge, http, "audio_seconds", seconds)

        # FastAPI may close its own file before an answer that is a stream has come to its end
        with open(os.dup(file.fileno()), "rb") as own:
            make: Callable[..., SoundFile] = SoundFile if self.sounds is None else self.sounds.sound
            sound = RequestSound(own, make(own, sampling_rate, max_seconds=most), count)
            try:
                yield sound
            finally:
                sound.leave()

    def _serving(self, http: HTTPConnection, model: ServedModel, body: schemas.Serving) -> Options:
        most = self.settings.timeout
        if body.timeout is not None and body.timeout > most:
            raise APIError(
                400,
                f"`timeout` must be at most {most:g} seconds, but is {body.timeout:g}",
                "timeout",
            )
        self.keys.check(http)
        caller, highest = caller_of(http), self.settings.max_priority
        if caller is not None and caller.limits.max_priority is not None:
            highest = caller.limits.max_priority
        # 0 is what those have asked for who have asked for nothing
        if body.priority > max(0, highest):
            raise APIError(
                400,
                f"`priority` must be at most {max(0, highest)}, but is {body.priority}; the server's "
                "--max-priority, or that of the key, allows more",
                "priority",
            )
        seconds = most if body.timeout is None else body.timeout
        return {
            # by then another model may have its name
            "model": model.decoder,
            "timeout": seconds,
            # live sessions have so many seconds for each turn, from now on
            "since": getattr(http.state, "arrived", time.monotonic()),
            "priority": min(body.priority, highest),
            "client": client_of(http),
            "on_deadline": body.on_deadline or self.settings.on_deadline,
        }


async def _at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


async def calls_of(http: HTTPRequest) -> Calls:
    """Return what the app was built with."""
    found: Calls = http.app.state.calls
    return found


TheCalls = Annotated[Calls, Depends(calls_of)]
