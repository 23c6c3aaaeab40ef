"""Models that come and go while the server answers, for those whose keys are an administrator's."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from pybeam.server.auth import ADMIN_FOLDER
from pybeam.server.calls import TheCalls
from pybeam.server.model_manager import Managed
from pybeam.server.routes import Route
from pybeam.server.schemas import Body, Text

router = APIRouter(
    prefix=ADMIN_FOLDER.rstrip("/") + "/models", tags=["administration"], route_class=Route
)

# it stands in logs and in the names of metrics
Name = Annotated[str, Field(pattern=r"^[\w./:@+-]{1,128}$")]


class NamedBody(Body):
    """A model."""

    name: Name


class LoadBody(NamedBody):
    """A model to load."""

    path: Text | None = Field(
        default=None, description="Its folder, in one of --model-folder; null: that of its name."
    )
    wait: bool = Field(default=True, description="false: answer at once, and the list tells more.")


class SwapBody(LoadBody):
    """A model that others take the place of."""

    path: Text | None = Field(
        default=None, description="The folder of the other; null: the same one, read again."
    )


class UnloadBody(NamedBody):
    """A model to unload."""

    timeout: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds for its requests; those that are left then get 503. null: no limit.",
    )
    wait: bool = Field(default=True, description="false: answer at once.")


class LoadingAnswer(BaseModel):
    """Weights on their way into the memory."""

    path: str
    bytes: int = Field(description="Of its weights; 0: not known yet.")
    phase: Literal["waiting", "reading", "warming up"]
    progress: float | None = Field(description="The share of its files that has been read.")
    seconds: float


class ModelAnswer(BaseModel):
    """A model, and what becomes of it."""

    name: str
    state: Literal["loading", "ready", "swapping", "unloading", "failed", "unloaded"]
    path: str | None
    bytes: int = Field(description="Of its weights in memory.")
    requests: int = Field(description="Those that have it until they are answered.")
    idle_seconds: float | None = Field(
        description="Since a request was last given it, or was answered."
    )
    loading: LoadingAnswer | None = None
    error: str | None = Field(default=None, description="Why the last attempt to load it failed.")


class MemoryAnswer(BaseModel):
    """The memory of weights, in bytes."""

    budget: int | None
    used: int
    free: int | None


class ModelsAnswer(BaseModel):
    """All models."""

    memory: MemoryAnswer
    models: list[ModelAnswer]
    available: list[str] = Field(description="Folders that may be loaded.")


@router.get("")
async def managed_models(calls: TheCalls) -> ModelsAnswer:
    """List the models with their state and memory, and those that may be loaded."""
    manager = calls.manager
    used, budget = manager.num_bytes, manager.budget
    free = None if budget is None else max(0, budget - used)
    return ModelsAnswer(
        memory=MemoryAnswer(budget=budget, used=used, free=free),
        models=[_written(one) for one in manager.all],
        available=await asyncio.to_thread(lambda: manager.available),
    )


@router.post("/load", response_model=ModelAnswer)
async def load(http: HTTPRequest, body: LoadBody, calls: TheCalls) -> Response:
    """Load a model. One that is here, or on its way, from the same folder is not loaded again."""
    _note(http, body)
    return await _loaded(calls.manager.load(body.name, body.path), body)


@router.post("/swap", response_model=ModelAnswer)
async def swap(http: HTTPRequest, body: SwapBody, calls: TheCalls) -> Response:
    """Load weights in place of a model. No request is lost: the old ones answer what they have begun."""
    _note(http, body)
    return await _loaded(calls.manager.swap(body.name, body.path), body)


@router.post("/unload", response_model=ModelAnswer)
async def unload(http: HTTPRequest, body: UnloadBody, calls: TheCalls) -> Response:
    """Unload a model when its requests are answered. One that is not here stays so."""
    _note(http, body)
    leaving = calls.manager.unload(body.name, body.timeout)
    if leaving and not body.wait:
        return JSONResponse(_written(leaving[-1]).model_dump(), 202)
    await asyncio.gather(*(asyncio.shield(one.leaving) for one in leaving if one.leaving))
    gone = ModelAnswer(
        name=body.name, state="unloaded", path=None, bytes=0, requests=0, idle_seconds=None
    )
    return JSONResponse(gone.model_dump())


async def _loaded(managed: Managed, body: LoadBody) -> Response:
    """Answer when a model is loaded, or at once. Raises APIError if it cannot be loaded."""
    if managed.loading is not None and managed.loading.outcome is not None:
        if not body.wait:
            return JSONResponse(_written(managed).model_dump(), 202)
        # a client that goes does not end it, nor what others wait for
        problem = await asyncio.shield(managed.loading.outcome)
        if problem is not None:
            raise problem
    return JSONResponse(_written(managed).model_dump())


def _note(http: HTTPRequest, body: NamedBody) -> None:
    http.state.log_fields = {"model": body.name}


def _written(managed: Managed) -> ModelAnswer:
    model, loading, coming = managed.model, managed.loading, None
    if loading is not None:
        coming = LoadingAnswer(
            path=loading.directory,
            bytes=loading.num_bytes,
            phase=loading.phase,
            progress=loading.progress,
            seconds=round(loading.seconds, 3),
        )
    return ModelAnswer(
        name=managed.name,
        state=managed.state,
        path=managed.directory,
        bytes=managed.num_bytes,
        requests=0 if model is None else model.gate.num_active,
        idle_seconds=None if model is None else round(time.monotonic() - model.gate.last_used, 3),
        loading=coming,
        error=managed.error,
    )
