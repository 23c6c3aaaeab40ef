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

from pybeam.cli.options.cluster import cluster_options
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.sections import Section, option

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


REPLICAS = Section(
    "Ray",
    [
        *cluster_options("Serve from a Ray cluster."),
        option(
            "--min-replicas",
            default=1,
            show_default=True,
            type=click.IntRange(1),
            metavar="N",
            help="Processes that each hold the models; --threads CPUs each.",
        ),
        option(
            "--max-replicas",
            type=click.IntRange(1),
            metavar="N",
            show_default="--min-replicas",
            help="Start more, up to so many, while there is more to do.",
        ),
        option(
            "--rows-per-replica",
            default=256,
            show_default=True,
            type=click.IntRange(1),
            metavar="ROWS",
            help="More to do: hypotheses that are decoded, and those that waiting texts will have.",
        ),
        option(
            "--gpus-per-replica",
            default=0.0,
            show_default=True,
            type=click.FloatRange(0),
            metavar="GPUS",
            help="May be a part of one.",
        ),
    ],
)


@dataclass(frozen=True)
class ReplicaOptions:
    """The options of `pybeam serve` for Ray.

    Raises UsageError for options that contradict each other.
    """

    on_ray: bool
    address: str | None
    min_replicas: int
    max_replicas: int | None
    rows_per_replica: int
    gpus_per_replica: float

    def __post_init__(self) -> None:
        least, most = self.min_replicas, self.max_replicas
        if self.address is not None and not self.on_ray:
            raise click.UsageError("--address needs --ray")
        if most is not None and most < least:
            raise click.UsageError(
                f"--max-replicas must be at least --min-replicas {least}, but is {most}"
            )


def serve_on_ray(
    options: ReplicaOptions, threads: int | None, parts: tuple[Any, Any, Any], log_level: str
) -> None:
    """Serve until SIGTERM or Ctrl-C. `parts` are the first arguments of `pybeam.ray.serving.deployment`.

    Raises:
        UsageError: options contradict each other.
        ClickException: Ray is not installed, there is no such cluster, or the models cannot be loaded.
    """
    settings = parts[1]
    if settings.port == 0:
        raise click.UsageError("--ray needs a --port above 0, which all machines then use")
    with as_failures(), connected(options.address):
        from pybeam.ray import serving

        asked_to_stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: asked_to_stop.set())
        application = serving.deployment(
            *parts,
            log_level=log_level,
            replicas=(options.min_replicas, options.max_replicas or options.min_replicas),
            rows_per_replica=options.rows_per_replica,
            num_cpus=threads or 1,
            num_gpus=options.gpus_per_replica,
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
    # Ray reads both when it is imported: it reports its use to nobody, ...
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
