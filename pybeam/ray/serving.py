"""`deployment`: the server's application as replicas of a Ray Serve deployment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from pybeam.ray.scaling import ROWS
from pybeam.ray.together import Report, Together
from pybeam.server import logs
from pybeam.server.app import build_app, build_service
from pybeam.server.auth import Keys
from pybeam.server.metrics import Metrics
from pybeam.server.models import ServedModel
from pybeam.server.settings import Settings
from ray import serve

if TYPE_CHECKING:
    from fastapi import FastAPI

NAME = "pybeam"
# the queue of the service refuses what is too much, and says so; Ray's limit must never come before
MAX_ONGOING = 1 << 16
# a burst is answered within seconds; a replica that loads a model is not given up for a quiet minute
SCALING = {
    "metrics_interval_s": 1.0,
    "look_back_period_s": 5.0,
    "upscale_delay_s": 5.0,
    "downscale_delay_s": 300.0,
}
HEALTH_SECONDS = 5.0

# gives the models by name, and the number of engines that each has
Load = Callable[[], tuple[Mapping[str, ServedModel], int]]


class Replica:
    """One process of a service: models, and the application of `pybeam serve` around them."""

    def __init__(
        self, load: Load, settings: Settings, keys: Keys, log_level: str, num_least: int
    ) -> None:
        logs.set_up(log_level)
        self._num_least = num_least
        self._models, engines = load()
        self._settings, self._keys, self._metrics = settings, keys, Metrics()
        self._service = build_service(self._models, self._metrics, settings, engines=engines)
        self._service.start()
        self._tracing = contextlib.ExitStack()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Make the application; Ray calls this."""
        tracer = None
        if self._settings.otlp_endpoint is not None:
            from pybeam.server.tracing import exported

            tracer = self._tracing.enter_context(exported(self._settings.otlp_endpoint))
        app = build_app(
            self._service,
            self._models,
            self._metrics,
            settings=self._settings,
            keys=self._keys,
            tracer=tracer,
        )
        app.state.whole = Together(self._num_least)
        return app

    async def report(self) -> Report:
        """Say what this replica knows of itself; `Together` asks."""
        name = serve.get_replica_context().replica_tag
        return Report(name, self._service.is_ready, self._metrics.families())

    def check_health(self) -> None:
        """Raise RuntimeError if an engine has stopped or hangs in a step. Ray then replaces the replica."""
        if not self._service.is_ready:
            raise RuntimeError("the service takes no requests: an engine has stopped or hangs")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Ray the rows in flight, and those that waiting requests will begin with at most."""
        rows = 0
        for name, model in self._models.items():
            status = self._service.status(name)
            rows += status.num_rows + status.num_waiting * model.decoder.algorithm.max_width
        return {ROWS: float(rows)}

    def __del__(self) -> None:
        # Ray has waited for the requests, or for as long as it may
        if hasattr(self, "_service"):
            self._service.close(timeout=0)
            self._tracing.close()


# each one is an option of the command line
def deployment(
    load: Load,
    settings: Settings,
    keys: Keys,
    *,
    log_level: str = "info",
    replicas: tuple[int, int] = (1, 1),
    rows_per_replica: float = 256,
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> serve.Application:
    """Make what `ray.serve.run` runs.

    Args:
        load: loads the models, and says how many engines each has; every replica calls it.
        settings: of the server; `host` and `port` are Ray's to read, and `shutdown_timeout` is the time in
            which a replica that is stopped finishes its requests.
        keys: that requests need.
        log_level: of the logs, which go to Ray's files.
        replicas: the least and the most.
        rows_per_replica: more replicas start when there are more rows; see `ByRows`.
        num_cpus, num_gpus: of each replica.
    """
    policy = AutoscalingPolicy(
        policy_function="pybeam.ray.scaling:ByRows", policy_kwargs={"rows": rows_per_replica}
    )
    least, most = replicas
    scaling = AutoscalingConfig(min_replicas=least, max_replicas=most, policy=policy, **SCALING)
    made = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        max_ongoing_requests=MAX_ONGOING,
        autoscaling_config=scaling,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=HEALTH_SECONDS,
    )
    return made.bind(load, settings, keys, log_level, least)


def start(application: serve.Application, settings: Settings) -> None:
    """Run an application at the settings' host and port; returns when it answers."""
    serve.start(http_options={"host": settings.host, "port": settings.port})
    serve.run(application, name=NAME)


def stop() -> None:
    """Take no new requests, finish those that have begun, and stop."""
    # the proxies stay until then, and carry the last answers
    serve.delete(NAME)
    serve.shutdown()
