"""LibreTranslate's endpoints: https://docs.libretranslate.com/api/operations/translate/."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, Field

from pybeam.request import Request
from pybeam.server import schemas
from pybeam.server.calls import Calls, TheCalls
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route, validated

router = APIRouter(tags=["LibreTranslate"], route_class=Route)


class TranslateBody(BaseModel):
    """Fields that LibreTranslate has and this one lacks are ignored, as its clients expect."""

    q: schemas.Text | list[schemas.Text]
    source: str
    target: str
    format: Literal["text"] = "text"
    alternatives: int = Field(default=0, ge=0, le=127)
    api_key: str | None = None


class TranslateAnswer(BaseModel):
    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


# documents the body, which FastAPI does not read itself as it may be a form
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": TranslateBody.model_json_schema()}
            for kind in ("application/json", "application/x-www-form-urlencoded")
        },
    }
}


@router.post("/translate", openapi_extra=BODY, response_model_exclude_none=True)
async def translate(http: HTTPRequest, calls: TheCalls) -> TranslateAnswer:
    """Translate a text, or a list of texts, line by line."""
    given = await _given(http)
    key = given.get("api_key")
    calls.keys.check(http, key if isinstance(key, str) else None)
    body = validated(TranslateBody, given)
    texts = [body.q] if isinstance(body.q, str) else body.q
    model = calls.models.pick(None, body.source, body.target, takes_sound=False)
    found = [_Found(text) for text in texts]
    await _translate(http, calls, model, body, found)
    answers = [one.texts(0) for one in found]
    others = [
        [one.texts(i) for i in range(1, 1 + body.alternatives) if one.has(i)] for one in found
    ]
    if isinstance(body.q, str):
        return TranslateAnswer(
            translatedText=answers[0], alternatives=others[0] if body.alternatives else None
        )
    return TranslateAnswer(
        translatedText=answers, alternatives=others if body.alternatives else None
    )


class _Found:
    """A text, and the hypotheses of each of its lines, best first."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.hypotheses: list[list[str]] = []

    def has(self, rank: int) -> bool:
        return any(len(one) > rank for one in self.hypotheses)

    def texts(self, rank: int) -> str:
        """The text from each line's hypothesis of this rank, or its last."""
        return "\n".join(one[min(rank, len(one) - 1)] if one else "" for one in self.hypotheses)


async def _translate(
    http: HTTPRequest, calls: Calls, model: ServedModel, body: TranslateBody, found: list[_Found]
) -> None:
    calls.check_number([line for one in found for line in one.lines], "q")
    n_best = 1 + body.alternatives
    calls.check_width(alternatives=n_best)
    requests = []
    for one in found:
        for line in one.lines:
            tokens = await calls.encode(model, line.strip(), (body.source, body.target), "q")
            more: dict[str, Any] = {} if n_best == 1 else {"n_best": n_best}
            requests.append(Request(tokens, **more))
    served = iter(await calls.decode(http, model, requests, schemas.Serving()))
    for one in found:
        for _ in one.lines:
            result = next(served).result
            one.hypotheses.append([model.text(each.tokens) for each in result.hypotheses])


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


@router.get("/languages")
async def languages(calls: TheCalls) -> list[Language]:
    """List the languages that the models name."""
    targets = calls.models.targets()
    return [Language(code=code, name=code, targets=targets[code]) for code in targets]


@router.post("/detect", status_code=501)
async def detect() -> None:
    """There is no detector."""
    raise APIError(501, "this server detects no languages; send `source`")
