"""The endpoints with which operators and clients ask about the server itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response

from pybeam import __version__
from pybeam.server.calls import TheCalls
from pybeam.server.errors import RETRY_SECONDS
from pybeam.server.gates import Gate
from pybeam.server.metrics import CONTENT_TYPE
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route

router = APIRouter(tags=["operations"], route_class=Route)


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(http: HTTPRequest, calls: TheCalls) -> JSONResponse:
    """Say whether to send requests here: 200, or 503 before the warm-up and while the server stops.

    Models that are loaded or unloaded meanwhile change nothing of that; the answer has their states.
    """
    gate: Gate = http.app.state.gate
    models = calls.manager.states
    if gate.is_open and await http.app.state.whole.is_ready():
        return JSONResponse({"status": "ready", "models": models})
    status = "starting" if gate.is_open else "stopping"
    content = {"status": status, "models": models}
    return JSONResponse(content, 503, {"Retry-After": str(RETRY_SECONDS)})


@router.get("/metrics")
async def metrics(http: HTTPRequest) -> Response:
    """Prometheus' metrics."""
    return Response(await http.app.state.whole.metrics(), media_type=CONTENT_TYPE)


@router.get("/version")
async def version() -> dict[str, str]:
    """Say which pybeam this is."""
    return {"version": __version__}


@router.get("/v1/models")
async def models(calls: TheCalls) -> dict[str, Any]:
    """List the models, as OpenAI's clients expect, with their languages."""
    return {"object": "list", "data": [_about(model) for model in calls.models]}


# a name may have slashes
@router.get("/v1/models/{name:path}")
async def model(name: str, calls: TheCalls) -> dict[str, Any]:
    """Say the same of one model."""
    return _about(calls.models.pick(name))


def _about(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pybeam",
        "input": "audio" if model.takes_sound else "text",
        "source_langs": model.languages.sources,
        "target_langs": model.languages.targets,
        "width": model.decoder.algorithm.width,
    }
