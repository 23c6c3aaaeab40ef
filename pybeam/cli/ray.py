"""Ray on the command line: `--ray`, and the cluster that is meant."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from pybeam.cli.options.corpus import ClusterOptions
from pybeam.cli.options.declare import Count, NotNegative, option, section
from pybeam.cli.options.errors import as_failures

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class ReplicaOptions:
    """The processes that serve on a cluster. Raises UsageError for options that contradict each other.

    Attributes:
        min_replicas: Processes that each hold the models; --threads CPUs each.
        max_replicas: Start more, up to so many, while there is more to do.
        rows_per_replica: More to do: hypotheses that are decoded, and those that waiting texts will have.
        gpus_per_replica: May be a part of one.
    """

    min_replicas: Count = option("N", 1)
    max_replicas: Count | None = option("N", shows="--min-replicas")
    rows_per_replica: Count = option("ROWS", 256)
    gpus_per_replica: NotNegative = option("GPUS", 0.0)

    def __post_init__(self) -> None:
        least, most = self.min_replicas, self.max_replicas
        if most is not None and most < least:
            raise click.UsageError(
                f"--max-replicas must be at least --min-replicas {least}, but is {most}"
            )


REPLICAS = section("Ray", ClusterOptions, ReplicaOptions)


def serve_on_ray(
    cluster: ClusterOptions,
    replicas: ReplicaOptions,
    threads: int | None,
    parts: tuple[Any, Any, Any],
    log_level: str,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `parts` are the first arguments of `pybeam.ray.serving.deployment`.

    Raises:
        UsageError: options contradict each other.
        ClickException: Ray is not installed, there is no such cluster, or the models cannot be loaded.
    """
    settings = parts[1]
    if settings.port == 0:
        raise click.UsageError("--ray needs a --port above 0, which all machines then use")
    with as_failures(), connected(cluster.address):
        from pybeam.ray import serving

        asked_to_stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: asked_to_stop.set())
        application = serving.deployment(
            *parts,
            log_level=log_level,
            replicas=(replicas.min_replicas, replicas.max_replicas or replicas.min_replicas),
            rows_per_replica=replicas.rows_per_replica,
            num_cpus=threads or 1,
            num_gpus=replicas.gpus_per_replica,
        )
        try:
            serving.start(application, settings)
        except RuntimeError as error:
            raise click.ClickException(f"the replicas do not start: {error}") from error
        click.echo(f"listening on http://{settings.host}:{settings.port}", err=True)
        asked_to_stop.wait()
        serving.stop()


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a cluster; None: to a new one, whose processes listen at 127.0.0.1 alone.

    Raises:
        ImportError: Ray is not installed.
        OSError: there is no such cluster.
    """
    # Ray reads all of them when it is imported: it reports its use to nobody, ...
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # ... a busy machine needs more than 5 seconds until it listens, ...
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    # ... and this is, despite its name, the only switch that keeps its processes on the loopback address
    if address is None or address.rpartition(":")[0] in LOOPBACK:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; --ray needs `pip install 'pybeam-search[ray]'`") from error
    own: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    # Ray would exit where our own commands end in order
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address or "local", log_to_driver=False, logging_level="warning", **own)
    signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        ray.shutdown()
