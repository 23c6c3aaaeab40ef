"""The clients: one that waits, one for asyncio."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self, overload

import httpx

from pybeam_client.protocol import Events, error_of, headers_of, recording, seconds_to_retry

TRANSLATIONS, DECODE, SCORE = "/v1/translations", "/v1/decode", "/v1/score"
AUDIO = "/v1/audio/transcriptions"


class Client:
    """A client that waits for its answers. It may be used by several threads.

    Options are the fields of the request's body, which the server's page /docs lists: `model`, `source_lang`,
    `target_lang`, `width`, `n_best`, `timeout`, ….

    Args:
        url: of the server, such as http://localhost:8000.
        api_key: a key, if the server asks for one.
        retries: times to ask again when the server is full (429) or stops (503), after the time it names,
            unless that is more than a minute.
        timeout: seconds to wait for an answer.
        transport: of httpx, in place of the network.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        retries: int = 2,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.Client(
            base_url=url, headers=headers_of(api_key), timeout=timeout, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @overload
    def translate(self, text: str, **options: Any) -> str: ...
    @overload
    def translate(self, text: list[str], **options: Any) -> list[str]: ...
    def translate(self, text: str | list[str], **options: Any) -> str | list[str]:
        """Translate a text, or each of a list. Raises ServerError."""
        found = [one["text"] for one in self.translations(text, **options)]
        return found[0] if isinstance(text, str) else found

    def translations(self, text: str | list[str], **options: Any) -> list[dict[str, Any]]:
        """Translate, with scores, alternatives and times. Raises ServerError."""
        found = self._ask(TRANSLATIONS, json={"text": text, **options})["translations"]
        return list(found)

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Translate a text; yields what has become certain, piece by piece. Raises ServerError."""
        body, events = {"text": text, "stream": True, **options}, Events()
        with self._http.stream("POST", TRANSLATIONS, json=body) as response:
            if response.is_error:
                response.read()
                raise error_of(response)
            for line in response.iter_lines():
                if delta := events.delta(line):
                    yield delta

    def decode(self, source: str | list[int], **options: Any) -> dict[str, Any]:
        """Decode a text or ids; returns everything that the result has. Raises ServerError."""
        return self._ask(DECODE, json={"source": source, **options})

    def score(
        self, source: str | list[int], target: str | list[int], **options: Any
    ) -> dict[str, Any]:
        """Score an output. Raises ServerError."""
        return self._ask(SCORE, json={"source": source, "target": target, **options})

    def transcribe(self, file: str | os.PathLike[str] | BinaryIO, **options: Any) -> str:
        """Write down what is said in a sound file. Raises ServerError."""
        return str(self._ask(AUDIO, files=recording(file), data=options)["text"])

    def models(self) -> list[dict[str, Any]]:
        """List the models. Raises ServerError."""
        response = self._http.get("/v1/models")
        if response.is_error:
            raise error_of(response)
        return list(response.json()["data"])

    def _ask(self, path: str, **content: Any) -> dict[str, Any]:
        for attempt in range(self._retries + 1):
            response = self._http.post(path, **content)
            if response.is_success:
                break
            time.sleep(seconds_to_retry(response, attempt == self._retries))
        return dict(response.json())


class AsyncClient:
    """The same for asyncio. A task that is cancelled takes its request back from the server.

    Args:
        url, api_key, retries, timeout: as for `Client`.
        transport: of httpx, such as an ASGITransport.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        retries: int = 2,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers_of(api_key), timeout=timeout, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @overload
    async def translate(self, text: str, **options: Any) -> str: ...
    @overload
    async def translate(self, text: list[str], **options: Any) -> list[str]: ...
    async def translate(self, text: str | list[str], **options: Any) -> str | list[str]:
        """Translate a text, or each of a list. Raises ServerError."""
        found = [one["text"] for one in await self.translations(text, **options)]
        return found[0] if isinstance(text, str) else found

    async def translations(self, text: str | list[str], **options: Any) -> list[dict[str, Any]]:
        """Translate, with scores, alternatives and times. Raises ServerError."""
        found = await self._ask(TRANSLATIONS, json={"text": text, **options})
        return list(found["translations"])

    async def stream(self, text: str, **options: Any) -> AsyncIterator[str]:
        """Translate a text; yields what has become certain, piece by piece. Raises ServerError."""
        body, events = {"text": text, "stream": True, **options}, Events()
        async with self._http.stream("POST", TRANSLATIONS, json=body) as response:
            if response.is_error:
                await response.aread()
                raise error_of(response)
            async for line in response.aiter_lines():
                if delta := events.delta(line):
                    yield delta

    async def decode(self, source: str | list[int], **options: Any) -> dict[str, Any]:
        """Decode a text or ids; returns everything that the result has. Raises ServerError."""
        return await self._ask(DECODE, json={"source": source, **options})

    async def score(
        self, source: str | list[int], target: str | list[int], **options: Any
    ) -> dict[str, Any]:
        """Score an output. Raises ServerError."""
        return await self._ask(SCORE, json={"source": source, "target": target, **options})

    async def transcribe(self, file: str | os.PathLike[str] | BinaryIO, **options: Any) -> str:
        """Write down what is said in a WAV file. Raises ServerError."""
        return str((await self._ask(AUDIO, files=recording(file), data=options))["text"])

    async def models(self) -> list[dict[str, Any]]:
        """List the models. Raises ServerError."""
        response = await self._http.get("/v1/models")
        if response.is_error:
            raise error_of(response)
        return list(response.json()["data"])

    async def _ask(self, path: str, **content: Any) -> dict[str, Any]:
        for attempt in range(self._retries + 1):
            response = await self._http.post(path, **content)
            if response.is_success:
                break
            await asyncio.sleep(seconds_to_retry(response, attempt == self._retries))
        return dict(response.json())
