"""Translations with everything that a search gives: alternatives, scores, times, certain prefixes."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import Response

from pybeam.request import Request
from pybeam.server.answers import Sentences, Translations, translation_of
from pybeam.server.calls import TheCalls
from pybeam.server.documents import sentences_of
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route
from pybeam.server.schemas import SentencesBody, TranslationsBody
from pybeam.server.sse import Event, event_of
from pybeam.serving import BestSoFar, Certain
from pybeam.text.deltas import TextDeltas

router = APIRouter(prefix="/v1", tags=["translation"], route_class=Route)


@router.post("/translations", response_model=Translations)
async def translations(
    http: HTTPRequest, body: TranslationsBody, calls: TheCalls
) -> Translations | Response:
    """Translate a text, or a list of texts.

    With `stream` the answer is server-sent events. `certain` has a `delta`, the text that has become certain
    and is never taken back; all deltas joined are the translation. `best` (with `best_so_far`) has the
    text of the best hypothesis so far, which may change. `result` is the answer as it comes without `stream`.
    """
    texts = [body.text] if isinstance(body.text, str) else body.text
    calls.check_number(texts, "text")
    model = calls.pick(http, body.model, body.source_lang, body.target_lang, takes_sound=False)
    overrides = await calls.overrides(http, model, body)
    requests = []
    for text in texts:
        tokens = await calls.encode(model, text, (body.source_lang, body.target_lang), "text")
        requests.append(Request(tokens, **overrides))
    if body.stream:
        if len(requests) > 1:
            raise APIError(400, "`text` must be one text with `stream`", "text")
        write = _Writer(model)
        return await calls.stream(
            http, model, requests[0], body, write, best_so_far=body.best_so_far
        )
    served = await calls.decode(http, model, requests, body)
    return Translations(
        model=model.name, translations=[translation_of(model, one) for one in served]
    )


@router.post("/sentences")
async def sentences(http: HTTPRequest, body: SentencesBody, calls: TheCalls) -> Sentences:
    """Split a text into the sentences that a model translates one by one, and what stands between them."""
    pair = body.source_lang, body.target_lang
    model = calls.pick(http, body.model, *pair, takes_sound=False)
    kept, texts = await sentences_of(calls, model, pair, body.text)
    return Sentences(model=model.name, kept=list(kept), texts=list(texts))


class _Writer:
    def __init__(self, model: ServedModel) -> None:
        self._model, self._deltas = model, TextDeltas(model.text)

    def __call__(self, event: Event) -> Iterator[str]:
        if isinstance(event, Certain):
            if delta := self._deltas.more(event.tokens):
                yield event_of({"delta": delta}, "certain")
        elif isinstance(event, BestSoFar):
            yield event_of({"text": self._model.text(event.tokens)}, "best")
        else:
            if delta := self._deltas.rest(self._model.best_text(event)):
                yield event_of({"delta": delta}, "certain")
            answer = Translations(
                model=self._model.name, translations=[translation_of(self._model, event)]
            )
            yield event_of(answer.model_dump_json(), "result")
