"""CTranslate2 behind a small FastAPI application: the server that a user writes in an afternoon.

python -m benchmarks.plain_server '{"directory": DIR, ...}'    what `build` takes, as JSON

Requests that wait are translated together, as many as are there when a translator is free, or come a few
milliseconds later. Nothing is bounded, no deadline is kept, and nothing is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks import corpus
from benchmarks.translation import MAX_LENGTH
from pybeam.server import logs


class Body(BaseModel):
    """The fields that it reads."""

    text: str


def build(
    directory: str,
    compute_type: str,
    width: int,
    threads: int,
    side_by_side: int,
    max_batch: int = 64,
    delay: float = 0.003,
) -> FastAPI:
    """Make the application; see `PeerService` for the arguments."""
    import ctranslate2

    translator = ctranslate2.Translator(
        directory,
        compute_type=compute_type,
        inter_threads=side_by_side,
        intra_threads=threads // side_by_side,
    )
    pieces, eos = corpus.processor(), corpus.vocabulary(corpus.processor())[corpus.EOS]
    waiting: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
    pool = ThreadPoolExecutor(side_by_side)

    def translated(texts: list[str]) -> list[str]:
        sources = [[*one, eos] for one in pieces.encode(texts, out_type=str)]
        options = dict(beam_size=width, length_penalty=1.0, max_decoding_length=MAX_LENGTH)
        results = translator.translate_batch(sources, max_batch_size=max_batch, **options)
        return [pieces.decode(one.hypotheses[0]) for one in results]

    async def translate_batches() -> None:
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(delay)
            # the other translators get the rest
            share = min(max_batch, math.ceil((1 + waiting.qsize()) / side_by_side))
            while len(batch) < share and not waiting.empty():
                batch.append(waiting.get_nowait())
            texts = [text for text, _ in batch]
            loop = asyncio.get_running_loop()
            try:
                outputs = await loop.run_in_executor(pool, translated, texts)
            except Exception as error:
                # whoever waits hears of it, and later batches are translated
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), output in zip(batch, outputs, strict=True):
                if not answer.done():
                    answer.set_result(output)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        translated(["a"] * max_batch)
        tasks = [asyncio.create_task(translate_batches()) for _ in range(side_by_side)]
        logging.info("ready")
        yield
        for task in tasks:
            task.cancel()

    app = FastAPI(lifespan=running)

    @app.post("/v1/translations")
    async def translations(body: Body) -> dict:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await waiting.put((body.text, answer))
        return {"translations": [{"text": await answer}]}

    return app


def main() -> None:
    # `Servers` reads where it listens, and when it is ready
    logs.set_up("info")
    listening = socket.create_server(("127.0.0.1", 0))
    logging.info("listening on http://%s:%d", *listening.getsockname())
    config = uvicorn.Config(build(**json.loads(sys.argv[1])), log_config=None, access_log=False)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
