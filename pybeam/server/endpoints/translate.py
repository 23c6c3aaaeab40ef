"""LibreTranslate's endpoints: https://docs.libretranslate.com/api/operations/translate/."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Form, UploadFile
from fastapi import Request as HTTPRequest
from fastapi.responses import Response
from pydantic import BaseModel, Field

from pybeam.server import schemas
from pybeam.server.calls import Calls, TheCalls
from pybeam.server.detector import Detected
from pybeam.server.documents import FORMAT_OF, format_of, translated, words_of
from pybeam.server.errors import APIError
from pybeam.server.languages import code_of, name_of
from pybeam.server.models import ServedModel, ServedModels
from pybeam.server.routes import Route, validated

router = APIRouter(tags=["LibreTranslate"], route_class=Route)

AUTO = "auto"
# what a browser does with a file of a stranger: keep it, and show nothing of it
DOWNLOAD = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


class Keyed(BaseModel):
    """Fields that LibreTranslate has and a body lacks are ignored, as its clients expect."""

    api_key: str | None = None


class TranslateBody(Keyed):
    q: schemas.Text | schemas.Listed[schemas.Text]
    source: str = Field(description='A code of GET /languages, or "auto".')
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(default=0, ge=0, le=127)
    model: schemas.Text | None = Field(
        default=None,
        description="A model's name, which LibreTranslate has not; by default the first that fits.",
    )


class DetectBody(Keyed):
    q: schemas.Text


class DetectedLanguage(BaseModel):
    language: str
    confidence: float = Field(description="0 to 100.")


class TranslateAnswer(BaseModel):
    translatedText: str | list[str]
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class FileForm(Keyed):
    """A text, an HTML page or subtitles, by the file's name."""

    file: UploadFile
    source: str
    target: str
    model: schemas.Text | None = None


class FileAnswer(BaseModel):
    translatedFileUrl: str


def _body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Document a body, which FastAPI does not read itself as it may be a form."""
    schema = {"schema": kind.model_json_schema()}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    content = dict.fromkeys(kinds, schema)
    return {"requestBody": {"required": True, "content": content}}


B = TypeVar("B", bound=Keyed)


async def _read(http: HTTPRequest, calls: Calls, kind: type[B]) -> B:
    """Read a body. Raises APIError if it is wrong, or has a wrong key."""
    given = await _given(http)
    key = given.get("api_key")
    calls.keys.check(http, key if isinstance(key, str) else None)
    return validated(kind, given)


@router.post("/translate", openapi_extra=_body_of(TranslateBody), response_model_exclude_none=True)
async def translate(http: HTTPRequest, calls: TheCalls) -> TranslateAnswer:
    """Translate a text, or a list of texts, sentence by sentence. Tags of HTML stay as they are."""
    body = await _read(http, calls, TranslateBody)
    texts = [body.q] if isinstance(body.q, str) else body.q
    calls.check_number(texts, "q")
    calls.check_width(alternatives=1 + body.alternatives)
    model, source, detected = await _chosen(calls, http, body, texts, body.format)
    pair = source, body.target
    found = await translated(calls, http, model, pair, texts, body.format, 1 + body.alternatives)
    answers = [one.text() for one in found]
    others = [one.alternatives(body.alternatives) for one in found] if body.alternatives else None
    is_one = isinstance(body.q, str)
    language = None if detected is None else _written(detected)
    return TranslateAnswer(
        translatedText=answers[0] if is_one else answers,
        detectedLanguage=language if is_one or language is None else [language] * len(texts),
        alternatives=others[0] if is_one and others else others,
    )


async def _chosen(
    calls: Calls,
    http: HTTPRequest,
    body: TranslateBody | FileForm,
    texts: list[str],
    form: str,
) -> tuple[ServedModel, str, Detected | None]:
    """Return who translates texts, their language, and how sure that is if it was to be detected.

    Raises:
        APIError: no model translates so, or the one that is named does not.
    """
    source, detected, models = body.source, None, calls.models
    if body.model is not None:
        named = models.pick(body.model, takes_sound=False)
        models = ServedModels({named.name: named})
    if source == AUTO:
        source, detected = await _detected(calls, models, texts, form, body.target)
    return calls.pick(http, body.model, source, body.target, takes_sound=False), source, detected


async def _detected(
    calls: Calls, models: ServedModels, texts: list[str], form: str, target: str
) -> tuple[str, Detected]:
    """Return from which language of models texts are to be translated, and which one was found."""
    codes = [one for one, others in models.targets().items() if code_of(target) in others]
    if not codes:
        raise APIError(400, f"no model here translates to {target!r}", "target")
    words = await asyncio.to_thread(lambda: [words_of(text, form) for text in texts])
    [best, *_] = await calls.detector.detect(words, codes)
    return best.language if best.language in codes else codes[0], best


def _written(one: Detected) -> DetectedLanguage:
    return DetectedLanguage(language=one.language, confidence=round(100 * one.probability, 1))


@router.post("/detect", openapi_extra=_body_of(DetectBody))
async def detect(http: HTTPRequest, calls: TheCalls) -> list[DetectedLanguage]:
    """Say in which of this server's languages a text is, the most probable one first."""
    body = await _read(http, calls, DetectBody)
    found = await calls.detector.detect([body.q], list(calls.models.targets()))
    return [_written(one) for one in found]


@router.post("/translate_file")
async def translate_file(
    http: HTTPRequest, form: Annotated[FileForm, Form()], calls: TheCalls
) -> FileAnswer:
    """Translate a file (txt, html, srt, vtt), which can then be downloaded for a while."""
    calls.keys.check(http, form.api_key)
    name = form.file.filename or ""
    kind = format_of(name)
    try:
        text = (await form.file.read()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise APIError(400, "`file` must be text in UTF-8", "file") from None
    model, source, _ = await _chosen(calls, http, form, [text], kind)
    [found] = await translated(calls, http, model, (source, form.target), [text], kind)
    kept = calls.files.keep(name, found.text().encode())
    return FileAnswer(translatedFileUrl=str(http.url_for("download_file", key=kept)))


@router.get("/download_file/{key}", response_class=Response)
async def download_file(key: str, calls: TheCalls) -> Response:
    """Return a translated file. Its address is known to whom translated it."""
    found = calls.files.get(key)
    if found is None:
        raise APIError(404, "there is no such file, or it was translated too long ago")
    name, content = found
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(content, media_type="application/octet-stream", headers=headers | DOWNLOAD)


@router.post("/suggest", status_code=403)
async def suggest() -> None:
    """Nobody learns from suggestions here."""
    raise APIError(403, "Suggestions are disabled on this server.")


@router.get("/languages")
async def languages(calls: TheCalls) -> list[Language]:
    """List the languages that the models name."""
    targets = calls.models.targets()
    return [Language(code=code, name=name_of(code), targets=targets[code]) for code in targets]


@router.get("/frontend/settings")
async def frontend_settings(calls: TheCalls) -> dict[str, Any]:
    """Say what LibreTranslate's own page, and those like it, must know."""
    targets = calls.models.targets()
    source = next(iter(targets), "en")
    target = next(iter(targets.get(source, [])), source)
    return {
        "apiKeys": bool(calls.keys),
        "charLimit": -1,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": bool(calls.keys),
        "language": {
            name: {"code": code, "name": name_of(code)}
            for name, code in (("source", source), ("target", target))
        },
        "suggestions": False,
        "supportedFilesFormat": list(FORMAT_OF),
    }


async def _given(http: HTTPRequest) -> dict[str, Any]:
    """Read the body, JSON or a form."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            # curl -d sends UTF-8 as it is
            form = (await http.body()).decode()
            return dict(parse_qsl(form, keep_blank_values=True, max_num_fields=20))
        if kind == "multipart/form-data":
            async with http.form(max_files=0, max_fields=20) as parts:
                return dict(parts)
        if kind != "application/json":
            # what a page of any site could send without being asked for its origin
            raise APIError(
                415, "the body must be JSON or a form, which the header `Content-Type` must say"
            )
        given = await http.json()
    except (ValueError, RecursionError):
        raise APIError(400, "the body must be JSON in UTF-8, or a form") from None
    if not isinstance(given, dict):
        raise APIError(400, "the body must be a JSON object")
    return given
