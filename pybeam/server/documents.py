"""Texts of several sentences, with or without markup, and their translations piece by piece."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from fastapi import Request as HTTPRequest

from pybeam.request import Request
from pybeam.server.calls import MAX_INLINE, Calls
from pybeam.server.errors import APIError
from pybeam.server.languages import code_of
from pybeam.server.models import ServedModel
from pybeam.server.schemas import Serving
from pybeam.serving import ServedResult
from pybeam.serving.together import in_order
from pybeam.text import markup, units
from pybeam.text.tokenizer import Tokenizer

T = TypeVar("T")
# how files of each kind are split
FORMATS: dict[str, units.Split] = {
    "text": units.lines,
    "html": markup.html,
    "subtitles": markup.subtitles,
}
FORMAT_OF = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".srt": "subtitles",
    ".vtt": "subtitles",
}


def format_of(name: str) -> str:
    """Return the format of a file. Raises APIError for one that is unknown."""
    found = FORMAT_OF.get(PurePath(name).suffix.lower())
    if found is None:
        known = ", ".join(FORMAT_OF)
        raise APIError(400, f"`file` must be of one of these kinds by its name: {known}", "file")
    return found


def words_of(text: str, form: str) -> str:
    """Return what of a text is language, as a detector reads it."""
    return "\n".join(FORMATS[form](text).texts)


class Document:
    """A text whose pieces are translated, each with its hypotheses, best first."""

    def __init__(self, template: units.Template, has_entities: bool) -> None:
        self._template, self._has_entities = template, has_entities
        self.hypotheses: list[list[str]] = []

    @property
    def pieces(self) -> list[str]:
        """The texts of the pieces, as a model reads them."""
        texts = self._template.texts
        return list(map(html.unescape, texts)) if self._has_entities else list(texts)

    def text(self, rank: int = 0) -> str:
        """Return the text made of each piece's hypothesis of this rank, or its last one."""
        found = [one[min(rank, len(one) - 1)] if one else "" for one in self.hypotheses]
        if self._has_entities:
            found = [html.escape(one, quote=False) for one in found]
        return self._template.fill(found)

    def alternatives(self, num: int) -> list[str]:
        """Return the next best texts, which differ from the best one and from each other."""
        most = max(map(len, self.hypotheses), default=1)
        found = dict.fromkeys(self.text(rank) for rank in range(min(1 + num, most)))
        return list(found)[1:]


async def translated(
    calls: Calls,
    http: HTTPRequest,
    model: ServedModel,
    pair: tuple[str, str],
    texts: Sequence[str],
    form: str,
    n_best: int = 1,
) -> list[Document]:
    """Translate texts sentence by sentence.

    Args:
        calls, http, model: the call.
        pair: the languages of source and target.
        texts: any number, of any length.
        form: "text", "html" or "subtitles".
        n_best: translations of each sentence.

    Raises:
        APIError: the model does not know the languages, or a request failed.
    """
    encoded: dict[str, list[int]] = {}

    def prepare() -> list[Document]:
        tokenizer, split = _reader(calls, model, pair, form, encoded)
        documents = [Document(split(text), form == "html") for text in texts]
        for one in documents:
            for piece in one.pieces:
                if piece not in encoded:
                    encoded[piece] = tokenizer.encode(piece)
        return documents

    documents = await _read(model, texts, prepare)
    more: dict[str, Any] = {} if n_best == 1 else {"n_best": n_best}
    # one that comes twice is translated once
    pieces = list(dict.fromkeys(piece for one in documents for piece in one.pieces))
    requests = [Request(encoded[piece], **more) for piece in pieces]
    served = await _decoded(calls, http, model, requests)
    found = {
        piece: [model.text(each.tokens) for each in one.result.hypotheses]
        for piece, one in zip(pieces, served, strict=True)
    }
    for one in documents:
        one.hypotheses = [found[piece] for piece in one.pieces]
    return documents


async def sentences_of(
    calls: Calls, model: ServedModel, pair: tuple[str | None, str | None], text: str
) -> units.Template:
    """Split a text into the sentences that `translated` would translate one by one.

    Args:
        calls, model: the call.
        pair: the languages of source and target; None: the model's own.
        text: of any length.

    Raises:
        APIError: the model does not know the languages, or this server cannot split texts.
    """

    def prepare() -> units.Template:
        _, split = _reader(calls, model, pair, "text", {})
        return split(text)

    return await _read(model, [text], prepare)


async def _read(model: ServedModel, texts: Sequence[str], prepare: Callable[[], T]) -> T:
    """Return what is made of texts, in a thread if that may take long."""
    # tokenizers of models with tags may have to be read from their files
    is_short = sum(map(len, texts)) <= MAX_INLINE and not model.has_tags
    try:
        return prepare() if is_short else await asyncio.to_thread(prepare)
    except ImportError as error:
        raise APIError(501, str(error)) from error


def _reader(
    calls: Calls,
    model: ServedModel,
    pair: tuple[str | None, str | None],
    form: str,
    encoded: dict[str, list[int]],
) -> tuple[Tokenizer, units.Split]:
    """Return the tokenizer, and what splits a text of this format into sentences that the model can read.

    Ids of pieces that are short enough are kept in `encoded`.
    """
    most, positions = calls.settings.max_source_tokens, model.decoder.model.max_positions
    limit = most if positions is None else min(most, positions)
    tokenizer = model.tokenizer(*pair)

    def count(text: str) -> int:
        ids = encoded[text] if text in encoded else tokenizer.encode(text)
        # one that is too long is split, and a text of a megabyte is halved many times
        if len(ids) <= limit:
            encoded[text] = ids
        return len(ids)

    # languages differ in what ends a sentence, but where none is named, the rules of English do
    language = "en" if pair[0] is None else code_of(pair[0])
    splits = [FORMATS[form], units.sentences(language), units.at_most(limit, count)]
    if form == "subtitles":
        # one is short, and what is said in it stands together
        del splits[1]
    return tokenizer, units.chain(splits)


async def _decoded(
    calls: Calls, http: HTTPRequest, model: ServedModel, requests: Sequence[Request]
) -> list[ServedResult]:
    """Decode requests, of long texts as many at a time as a call may have."""
    # a sentence that is cut would be taken for a whole one
    most, serving = calls.settings.max_sources, Serving(on_deadline="raise")
    if not requests:
        return []
    if len(requests) <= most:
        return await calls.decode(http, model, requests, serving)
    http.state.log_fields = {"model": model.name, "sources": len(requests)}

    decode = calls.parts(http, model, serving, "the text was not translated")

    async def decode_all() -> list[ServedResult]:
        return [one async for one in in_order(requests, lambda _, one: decode(one), most)]

    [served] = await calls.all_of(http, [decode_all()])
    return served
