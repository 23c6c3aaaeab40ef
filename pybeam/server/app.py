"""The ASGI application: endpoints, and what stands around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline

from pybeam import __version__
from pybeam.decoder import Decoder
from pybeam.server import errors
from pybeam.server.audit import AuditLog
from pybeam.server.auth import Admission, Keys
from pybeam.server.calls import Calls
from pybeam.server.door import Door
from pybeam.server.endpoints import (
    administration,
    audio,
    chat,
    completions,
    decode,
    operations,
    page,
    realtime,
    translate,
    translations,
)
from pybeam.server.gates import Gate, Gated
from pybeam.server.grammars import Grammars
from pybeam.server.limits import BodyLimits, Places
from pybeam.server.loading import Loader
from pybeam.server.logs import AccessLog
from pybeam.server.metrics import Alone, Metrics
from pybeam.server.model_manager import ModelManager
from pybeam.server.models import ServedModel, ServedModels
from pybeam.server.origins import KnownOrigins
from pybeam.server.quotas import RATE_HEADERS
from pybeam.server.routes import Direct
from pybeam.server.settings import Settings
from pybeam.serving import Service
from pybeam.serving.sound_process import SoundProcesses

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ROUTERS = (
    translate.router,
    translations.router,
    decode.router,
    completions.router,
    chat.router,
    audio.router,
    administration.router,
    realtime.router,
    operations.router,
    page.router,
)


def build_service(
    models: Mapping[str, ServedModel],
    metrics: Metrics,
    settings: Settings,
    *,
    engines: int = 1,
    processes: bool = False,
) -> Service:
    """Make the service of these models, with metrics that listen to it; see `Service` for the engines."""
    decoders: dict[str, Decoder | Sequence[Decoder]] = {
        name: model.decoders for name, model in models.items()
    }
    transcripts = [one.transcripts for one in models.values() if one.transcripts is not None]
    decoders |= {one.name: one.decoder for one in transcripts}
    return Service(
        decoders,
        engines=engines,
        processes=processes,
        max_waiting=settings.max_waiting,
        max_waiting_work=settings.max_waiting_work,
        width_by_load=dict(settings.width_by_load) or None,
        nice=settings.nice,
        listener=metrics,
    )


# each one is made elsewhere, and most may be left out
def build_app(
    service: Service,
    models: Mapping[str, ServedModel],
    metrics: Metrics,
    *,
    settings: Settings | None = None,
    keys: Keys | None = None,
    tracer: Tracer | None = None,
    audit: AuditLog | None = None,
    sounds: SoundProcesses | None = None,
    loader: Loader | None = None,
) -> FastAPI:
    """Make the application of a service, which the caller starts and closes.

    Args:
        service: decodes.
        models: by name.
        metrics: what the service tells.
        settings: limits of requests.
        keys: that open it; None: it is open to all.
        tracer: of OpenTelemetry, begins a span for every request; None: there are no spans.
        audit: log of requests beside the program's own; None: there is none.
        sounds: decode recordings; None: this process does.
        loader: reads models that administrators ask for; None: there are none but those of the beginning.
    """
    settings = Settings() if settings is None else settings
    # /docs and /redoc load the files of this package, so that they need no network
    app = FastAPIOffline(
        title="pybeam",
        version=__version__,
        description="Exact beam search over HTTP. `/v1/decode` takes everything that a search has.",
        # no site is asked whether the schema is right
        swagger_ui_parameters={"validatorUrl": None},
        # spans are those of `Traced`, and nothing else may hear of a body
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    keys = Keys() if keys is None else keys
    places = Places(settings)
    given = ServedModels(models)
    manager = ModelManager(service, given, loader, settings)
    grammars = Grammars(settings.forwarded_allow_ips)
    calls = Calls(
        service, given, settings, keys, metrics, places, manager, sounds, grammars=grammars
    )
    app.state.calls = calls
    app.state.gate = Gate()
    metrics.watch(service, manager)
    app.state.whole = Alone(service, metrics)
    # before those of the documentation; a router that is included would match each request twice
    app.router.routes[:0] = [route for router in ROUTERS for route in router.routes]
    errors.install(app)
    # the last one added stands outside
    app.add_middleware(Direct, routes=list(app.router.routes))
    app.add_middleware(Door, calls=calls, routes=list(app.router.routes))
    app.add_middleware(Admission, keys=keys)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id", "traceparent"],
            expose_headers=["X-Request-Id", "traceparent", "Retry-After", *RATE_HEADERS],
        )
    app.add_middleware(KnownOrigins, settings=settings)
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(Gated, gate=app.state.gate)
    app.add_middleware(AccessLog, metrics=metrics, audit=audit)
    if tracer is not None:
        from pybeam.server.tracing import Traced

        app.add_middleware(Traced, tracer=tracer)
    return app
