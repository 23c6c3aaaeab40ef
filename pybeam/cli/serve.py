"""`pybeam serve`: models over HTTP."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from pybeam.cli.loading import Setup
from pybeam.cli.options.corpus import ClusterOptions, Processes
from pybeam.cli.options.declare import FILE_TEXT, FOLDER_TEXT, Parsed, option, section, take
from pybeam.cli.options.errors import as_failures, as_usage_errors
from pybeam.cli.options.files import ModelOptions
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED
from pybeam.cli.options.toml_files import defaults_of, read_toml
from pybeam.cli.ray import REPLICAS, ReplicaOptions, serve_on_ray
from pybeam.cli.served_models import ModelLoader, check_budget, read_directories
from pybeam.server.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.trace import Tracer

    from pybeam.server.models import ServedModel
    from pybeam.serving.sound_process import SoundProcesses

ENVIRONMENT = "PYBEAM_SERVE"
# each has memory of its own, and smaller batches
MAX_ENGINES = 4
KEYS = f"{ENVIRONMENT}_API_KEYS"


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Take the settings of a TOML file as defaults of the options."""
    if path is None:
        return
    said = f"--config {path}"
    found = read_toml(path, said)
    # a file names no other file
    options = [one for one in context.command.params if one is not parameter]
    defaults = dict(context.default_map or {})
    defaults |= defaults_of(options, found, said, "`pybeam serve`; its --help lists them")
    context.default_map = defaults


def check_url(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Raise BadParameter unless it is an address of HTTP."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} must be a URL, such as http://localhost:4318")
    return url


def parse_network(text: str) -> str:
    """Return an address or a network. Raises ValueError if it is neither."""
    network = ipaddress.ip_network(text, strict=False)
    return str(network) if "/" in text else text


def parse_bytes(text: str) -> int:
    """Read a size of memory, such as 8GiB. Raises ValueError if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B?", text)
    if found is None:
        raise ValueError
    number, unit = float(found[1]), found[2] or ""
    size = int(number * (1024 if "i" in unit else 1000) ** " KMGT".index(unit[:1] or " "))
    if size < 1:
        raise ValueError
    return size


SIZE = Parsed(parse_bytes, "{!r} must be a size of memory, such as 8GiB")


def parse_load(text: str) -> tuple[int, int]:
    """Read a number of waiting texts and the width of beams from there on."""
    waiting, _, width = text.partition(":")
    if not (waiting.isdigit() and width.isdigit() and int(waiting) and int(width)):
        raise ValueError
    return int(waiting), int(width)


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server beside its `Settings` and the search.

    Attributes:
        model: Folder of a model as transformers, CTranslate2 or Marian writes it, or a name: on the Hugging
            Face hub (owner/name), or of an example (bible-es-en); may be given many times. NAME is what
            requests call it; by default the last part of the folder's name or of that on the hub. A NAME that
            ends in es-en says that it translates from es to en, if the model's files name no languages.
        config: TOML file with these options, without the dashes: `port = 80`, `model = ["es-en=DIR"]`. The
            command line and the environment go before it.
        engines: Engines of each model. They share its weights and the texts that wait, and each computes with
            its share of --threads. More of them answer more requests; one answers a lonely request of a large
            model sooner.
        processes: So many engines of each model, each in a process of its own, over the same weights in
            memory; auto: one per thread. The server goes on if one crashes. For CPUs, in place of --engines.
        api_key_file: File with a key on each line; requests must then have one. So do the keys in
            PYBEAM_SERVE_API_KEYS, joined by commas.
        keys: TOML file of keys with limits, which `pybeam key` makes. Read again at SIGHUP.
        phrases: Let requests say which phrases their outputs must contain (must_contain in a body). Steps
            take up to 3 % longer, whoever asks.
        structured_outputs: Whether requests may hold outputs to JSON, patterns, choices and grammars
            (response_format or structured_outputs in a body). On a GPU steps are then not captured, which
            takes longer, whoever asks.
        log_level: What to log, to stderr, as JSON. Texts are never logged.
    """

    model: tuple[str, ...] = option("[NAME=]MODEL", (), required=True)
    config: Annotated[str, FILE_TEXT] | None = option(
        "FILE", is_eager=True, expose_value=False, callback=read_config
    )
    engines: Annotated[int, click.IntRange(1, 1024)] | None = option(
        "N", shows=f"on a CPU one per thread, at most {MAX_ENGINES}; on a GPU 1", is_common=True
    )
    processes: Processes | None = option("N|auto")
    api_key_file: Annotated[str, FILE_TEXT] | None = option("FILE")
    keys: Annotated[str, FILE_TEXT] | None = option("FILE")
    phrases: bool = False
    structured_outputs: bool | None = option(
        flag="--structured-outputs/--no-structured-outputs", shows="if the models are on a CPU"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if self.engines is not None and self.processes is not None:
            raise click.UsageError("give either --engines or --processes, not both")

    def loader(self, setup: Setup) -> ModelLoader:
        """Return what loads models as these options say."""
        return ModelLoader(setup, self.phrases, self.structured_outputs)


SERVER_OPTIONS = (
    *("model", "revision", "host", "port", "config", "engines", "processes", "api_key_file"),
    "keys",
    *("cors_origins", "allowed_hosts", "forwarded_allow_ips", "max_connections"),
    *("max_connections_per_client", "keep_alive", "shutdown_timeout", "log_level", "audit_log"),
    *("otlp_endpoint", "model_folders", "memory_budget", "unload_idle", "phrases"),
    "structured_outputs",
)
SERVER = section(
    "Server",
    ServeOptions,
    ModelOptions,
    Settings,
    names=SERVER_OPTIONS,
    host={"is_common": True},
    port={"is_common": True},
    forwarded_allow_ips={
        "type": Parsed(parse_network, "{!r} must be an address or a network, such as 10.0.0.0/8")
    },
    otlp_endpoint={
        "envvar": [f"{ENVIRONMENT}_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        "callback": check_url,
    },
    memory_budget={"type": SIZE},
    audit_log={"type": FILE_TEXT},
    model_folders={"type": FOLDER_TEXT},
)
LIMITS = section(
    "Limits of a request",
    Settings,
    names=[one.name for one in fields(Settings) if one.name not in SERVER_OPTIONS],
    width_by_load={"type": Parsed(parse_load, "{!r} must be two numbers, such as 16:3")},
    max_bodies={"type": SIZE},
)


@click.command(
    cls=SectionCommand,
    short_help="Serve models over HTTP.",
    sections=[SERVER, LIMITS, REPLICAS, *SECTIONS, SPEED],
    context_settings={"auto_envvar_prefix": ENVIRONMENT},
)
def serve(**values: Any) -> int:
    """Serve models over HTTP: translations, transcriptions, completions.

    Requests of all clients are decoded together and answered one by one; what is certain of an answer is
    sent before the rest. The options for the search are those of `pybeam translate`; requests may change some
    of them. Every option can also stand in a file (--config) or in the environment: PYBEAM_SERVE_PORT
    is --port. Documentation of the running server is at /docs.

    \b
    Examples:
      pybeam serve --model bible-es-en
      curl localhost:8000/translate -d q="Jesús lloró." -d source=es -d target=en
      pybeam serve --model es-en=DIR --model digits=DIR --host 0.0.0.0 --threads 4
      pybeam serve --config serve.toml
      pybeam serve --model DIR --device cuda:0,cuda:1
      pybeam serve --model DIR --ray --max-replicas 4 --threads 2

    \b
    Exit codes:
      0    SIGTERM or Ctrl-C; every request has been answered
      1    a model or a package is missing, or the port is taken
      2    options that are wrong or contradict each other
    """
    with as_failures():
        try:
            from pybeam.server import logs
            from pybeam.server.app import build_app, build_service
            from pybeam.server.audit import AuditLog
            from pybeam.server.auth import Keys
            from pybeam.server.lifecycle import serve as serve_app
            from pybeam.server.metrics import Metrics
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{error}; `pybeam serve` needs `pip install 'pybeam-search[serve]'`"
            ) from error
        options = take(ServeOptions, values)
        load_keys = partial(Keys.load, options.api_key_file, os.environ.get(KEYS), options.keys)
    cluster, replicas = take(ClusterOptions, values), take(ReplicaOptions, values)
    directories, setup = read_directories(options.model), Setup.take(values)
    settings = take(Settings, values)
    load = partial(load_models, directories, setup, options, settings.memory_budget)
    assert not values, "these options would be ignored"
    if cluster.on_ray:
        check_ray(options, settings)
        with as_failures():
            parts = load, settings, load_keys()
        serve_on_ray(cluster, replicas, setup.device.threads, parts, options.log_level)
        return 0
    logs.set_up(options.log_level)
    with open_tracer(settings.otlp_endpoint) as tracer, sound_processes() as sounds:
        with as_failures():
            # what decodes recordings has begun, and has none of them
            keys = load_keys()
            audit = AuditLog(settings.audit_log) if settings.audit_log else None

        def start() -> FastAPI:
            models, engines = load()
            takes_sound = any(one.takes_sound for one in models.values())
            if sounds is not None and not (takes_sound or settings.model_folders):
                sounds.stop()
            metrics = Metrics()
            with as_usage_errors():
                service = build_service(
                    models,
                    metrics,
                    settings,
                    engines=engines,
                    processes=options.processes is not None,
                )
            service.start()
            more: dict[str, Any] = {
                "keys": keys,
                "tracer": tracer,
                "audit": audit,
                "sounds": sounds,
                # engines have their threads by then
                "loader": options.loader(setup.with_threads(None)),
            }
            return build_app(service, models, metrics, settings=settings, **more)

        reload = [keys.reload] if options.keys else []
        serve_app(start, settings, [audit.reopen, *reload] if audit else reload)
    return 0


@contextmanager
def sound_processes() -> Iterator[SoundProcesses | None]:
    """Give what decodes recordings, copies of this process without models and keys; None: none can."""
    from pybeam.serving.sound_process import SoundProcesses

    if not SoundProcesses.are_possible():
        yield None
        return
    processes = SoundProcesses()
    processes.start()
    try:
        yield processes
    finally:
        processes.stop()


def open_tracer(endpoint: str | None) -> AbstractContextManager[Tracer | None]:
    """Return a context that gives the tracer of requests' spans, None without an endpoint.

    Raises ClickException if its package is missing.
    """
    if endpoint is None:
        return nullcontext()
    try:
        from pybeam.server.tracing import exported
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error}; `--otlp-endpoint` needs `pip install 'pybeam-search[otel]'`"
        ) from error
    return exported(endpoint)


def check_ray(options: ServeOptions, settings: Settings) -> None:
    """Raise UsageError for options of a server that is one process."""
    if options.processes is not None:
        raise click.UsageError(
            "--processes has no meaning with --ray; --min-replicas says how many"
        )
    if options.keys or settings.audit_log:
        raise click.UsageError(
            "--keys and --audit-log are for one process, and --ray starts several; keys without limits are "
            "those of --api-key-file"
        )
    if settings.model_folders or settings.unload_idle:
        raise click.UsageError(
            "--model-folder and --unload-idle are for one process, and --ray starts several; restart it with "
            "other models"
        )


def share_threads(options: ServeOptions, models: dict[str, ServedModel]) -> int:
    """Give each engine its share of torch's threads. Returns how many engines a model has."""
    import torch

    threads = torch.get_num_threads()
    on_cpu = all(one.decoder.model.device.type == "cpu" for one in models.values())
    best = min(threads, MAX_ENGINES) if on_cpu else 1
    engines = options.engines or best
    if options.processes is not None:
        engines = options.processes or threads
    torch.set_num_threads(max(1, threads // engines))
    return engines


def load_models(
    directories: dict[str, str], setup: Setup, options: ServeOptions, budget: int | None = None
) -> tuple[dict[str, ServedModel], int]:
    """Load the models. Returns them, and how many engines each has, which share the threads.

    Raises ClickException for models that cannot be read, or whose weights do not fit into the budget.
    """
    loader = options.loader(setup)
    if budget is not None:
        check_budget(loader, directories, budget)
    models = {name: loader.load(name, directory) for name, directory in directories.items()}
    return models, share_threads(options, models)
