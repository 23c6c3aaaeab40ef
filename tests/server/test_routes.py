"""Routes that do without FastAPI answer as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Form, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict

from pybeam.server import errors
from pybeam.server.errors import APIError
from pybeam.server.routes import Direct, Route

JSON = "application/json"


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str | list[str]
    number: int = 1


class Answered(BaseModel):
    text: Any
    number: int | None = None


async def known(http: Request) -> None:
    if http.headers.get("key") == "no":
        raise APIError(401, "a key is missing")


async def host(http: Request) -> str:
    return http.headers["host"]


Host = Annotated[str, Depends(host)]


@cache
def app(route_class: type[APIRoute]) -> FastAPI:
    made = APIRouter(route_class=route_class)

    @made.post("/model", response_model=Answered, response_model_exclude_none=True)
    async def model(http: Request, body: Asked, host: Host) -> Answered | Response:
        if body.number == 2:
            return JSONResponse({"number": 2}, 202)
        return Answered(text=[host, http.method, body.text])

    @made.get("/plain", status_code=203)
    async def plain() -> dict[str, Any]:
        return {"a": (1, None, "é")}

    @made.get("/known", dependencies=[Depends(known)])
    async def with_key() -> str:
        return "a"

    @made.post("/form")
    async def form(text: Annotated[str, Form()]) -> str:
        return text

    @made.get("/broken/{kind}")
    async def broken(kind: str) -> str:
        raise AssertionError(kind)

    @made.get("/stream")
    async def stream() -> Response:
        return StreamingResponse(pieces())

    @made.get("/refused")
    async def refused() -> str:
        raise HTTPException(418, "no", {"Key": "1"})

    found = FastAPI()
    errors.install(found)
    found.router.routes.extend(made.routes)
    if route_class is Route:
        found.add_middleware(Direct, routes=list(found.router.routes))
    return found


async def pieces() -> AsyncIterator[bytes]:
    yield b"1"
    raise APIError(400, "in the middle")


def answer(route_class: type[APIRoute], method: str, path: str, **more: Any) -> tuple[Any, ...]:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app(route_class))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **more)

    found = asyncio.run(ask())
    return found.status_code, found.headers["content-type"], found.json()


def test_paths_of_endpoints_do_without_the_router(monkeypatch):
    """Those with parameters need it, and so do other methods."""
    asked: list[str] = []
    real = APIRouter.app

    async def router(self: APIRouter, scope: Any, *more: Any) -> None:
        asked.append(scope["path"])
        await real(self, scope, *more)

    monkeypatch.setattr(APIRouter, "app", router)
    app.cache_clear()
    try:
        assert answer(Route, "GET", "/plain")[0] == 203
        assert answer(Route, "POST", "/model", json={"text": "a"})[0] == 200
        assert not asked
        assert answer(Route, "GET", "/model")[0] == 405
        assert answer(Route, "GET", "/nowhere")[0] == 404
        assert asked == ["/model", "/nowhere"]
    finally:
        app.cache_clear()


def test_a_body_that_comes_in_pieces():
    async def content() -> AsyncIterator[bytes]:
        for one in (b'{"te', b'xt": ', b'"a"}'):
            yield one

    assert (
        answer(Route, "POST", "/model", content=content(), headers={"Content-Type": JSON})[0] == 200
    )


@pytest.mark.parametrize("route_class", [Route, APIRoute])
def test_an_answer_that_has_begun_gets_no_second_one(route_class):
    with pytest.raises((APIError, RuntimeError)):
        answer(route_class, "GET", "/stream")


def same(*request: str, **more: Any) -> tuple[Any, ...]:
    """Return the answer, which is FastAPI's own."""
    found = answer(Route, *request, **more)
    assert found == answer(APIRoute, *request, **more)
    return found


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b'{"text": 5}',
        b'{"text": "a", "number": "b"}',
        b'{"text": "a", "other": 1}',
        b'{"number": 1}',
    ],
)
def test_bodies_that_do_not_fit(content):
    status, _, found = same("POST", "/model", content=content, headers={"Content-Type": JSON})
    assert status == 400 and found["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b'{"text": "\xff"}', b"[" * 9000])
def test_bodies_that_are_no_json(content):
    found = answer(Route, "POST", "/model", content=content, headers={"Content-Type": JSON})
    assert found[0] == 400 and "the body must be JSON" in found[2]["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "", None, "application/x-json", "json"])
def test_only_what_says_so_is_json(kind):
    headers = {} if kind is None else {"Content-Type": kind}
    assert same("POST", "/model", content=b'{"text": "a"}', headers=headers)[0] == 400


@pytest.mark.parametrize("kind", [JSON, "Application/JSON; charset=utf-8", "application/a+json"])
def test_json(kind):
    status, _, found = same(
        "POST", "/model", content='{"text": "é"}'.encode(), headers={"Content-Type": kind}
    )
    assert status == 200 and found == {"text": ["localhost", "POST", "é"]}


def test_other_answers():
    assert same("POST", "/model", json={"text": [], "number": 2})[0] == 202
    assert same("GET", "/plain")[::2] == (203, {"a": [1, None, "é"]})
    assert same("POST", "/form", data={"text": "a"})[::2] == (200, "a")
    assert same("POST", "/form")[0] == 400
    assert same("GET", "/known")[::2] == (200, "a")
    assert same("GET", "/known", headers={"key": "no"})[0] == 401
    assert same("GET", "/model")[0] == 405
    assert same("GET", "/refused")[0] == 418
    for route_class in (Route, APIRoute):
        with pytest.raises(AssertionError):
            answer(route_class, "GET", "/broken/a")
