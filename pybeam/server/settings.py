"""The settings of a server beside its models: where it listens, and what a request or a key may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from click import FloatRange, IntRange

Count = Annotated[int, IntRange(1)]
Positive = Annotated[float, FloatRange(0, min_open=True)]


def setting(metavar: str, default: Any = None, **facts: str) -> Any:
    """Return a field with what the command line says of it, see `pybeam.cli.options.declare`."""
    return field(default=default, metadata={"metavar": metavar, **facts})


@dataclass(frozen=True)
class Settings:
    """Settings of a server. These lines are the help of `pybeam serve`, too.

    Attributes:
        host: Address to listen at; 0.0.0.0: every one, so that other machines can ask.
        port: Port to listen at; 0: a free one, which the log names.
        cors_origins: Allow pages of this origin to ask from a browser; may be given many times.
        allowed_hosts: Take requests for this name, as the header Host has it: a proxy's, for example. May be
            given many times.
        forwarded_allow_ips: Address or network of a proxy, whose requests say in X-Forwarded-For and
            X-Forwarded-Proto for whom it asks. May be given many times.
        max_connections: Connections of all clients; one beyond is closed at once.
        max_connections_per_client: Connections of one address, or of one network of IPv6 (/64). Proxies may
            have more.
        keep_alive: Close a connection on which no request has come for this time, and a live session in which
            no sound has. Let a proxy's be shorter.
        shutdown_timeout: After SIGTERM finish what has begun within this time, and cancel the rest.
        audit_log: File to which a line of JSON is added for each request: who asked, when, for what. Opened
            anew at SIGHUP.
        otlp_endpoint: Send a span of every request to this collector of OpenTelemetry, by OTLP over HTTP,
            such as http://localhost:4318; by default OTEL_EXPORTER_OTLP_ENDPOINT.
        timeout: Answer 504 after this time; a request may ask for less.
        on_deadline: When that time is over, answer 504 (raise), or with the best found so far (best). A
            request may say which.
        max_waiting: Texts that may wait for each model; a request beyond gets 429.
        max_waiting_work: Source tokens times beam width of all texts that wait for a model; likewise 429.
        width_by_load: While so many texts wait, begin others with a beam of at most K, which is faster and
            worse; answers say their width. May be given many times, such as 16:3 and 64:1.
        nice: Niceness of what decodes, on Linux. The thread that speaks HTTP has a core before it, and so do
            other programs have one; 0 where these are many.
        max_priority: Highest priority that a request may ask for. All may ask for less, down to -8.
        max_sources: Texts in one request.
        max_source_tokens: Length of a text.
        max_width: Beam width, and number of outputs, that a request may ask for.
        max_body: Size of a request, or of a message of a live session.
        max_bodies: Size of all requests that are being answered, but for recordings; one beyond gets 429. In
            memory they may take twenty times as much.
        max_audio: Size of a request with a recording.
        max_audio_seconds: Length of a recording. A longer one is refused when so much of it is decoded.
        max_recordings: Recordings and live sessions that are transcribed at a time; one beyond gets 429.
        max_recordings_per_client: Those of one key, or without keys of one address, or of one network of IPv6
            (/64). Proxies may have more.
        max_live_seconds: Length of a live session, which is then closed.
        body_timeout: Time in which a request must have come whole, and in which its answer must be read on.
        model_folders: Folder of models, which administrators may load by HTTP; may be given many times. /
            allows every folder that the server can read.
        memory_budget: Memory for the weights of all models, such as 8GiB. A model that does not fit is not
            read.
        unload_idle: To make room for a model, unload others that have no requests, the least recently used
            first.
    """

    host: str = setting("NAME", "127.0.0.1")
    port: Annotated[int, IntRange(0, 65535)] = 8000
    cors_origins: tuple[str, ...] = setting("ORIGIN", (), flag="--cors-origin")
    allowed_hosts: tuple[str, ...] = setting(
        "NAME",
        (),
        shows="those of this machine if --host is one of them, else all",
        flag="--allow-host",
    )
    forwarded_allow_ips: tuple[str, ...] = setting("ADDRESS", ("127.0.0.1", "::1"))
    max_connections: Count | None = setting("N", shows="as many as the system allows")
    max_connections_per_client: Count = setting("N", 1024)
    keep_alive: Positive = setting("SECONDS", 75.0)
    shutdown_timeout: Annotated[float, FloatRange(0)] = setting("SECONDS", 30.0)
    audit_log: str | None = setting("FILE")
    otlp_endpoint: str | None = setting("URL")
    timeout: Positive = setting("SECONDS", 60.0)
    on_deadline: Literal["raise", "best"] = "raise"
    max_waiting: Count = setting("N", 256)
    max_waiting_work: Count | None = setting("WORK")
    width_by_load: tuple[tuple[int, int], ...] = setting("WAITING:K", ())
    nice: Annotated[int, IntRange(0, 19)] = setting("N", 10)
    max_priority: Annotated[int, IntRange(0, 8)] = setting("N", 0)
    max_sources: Count = setting("N", 64)
    max_source_tokens: Count = setting("TOKENS", 1024)
    max_width: Annotated[int, IntRange(1, 4096)] = setting("K", 32)
    max_body: Count = setting("BYTES", 1 << 20)
    max_bodies: Count = setting("SIZE", 64 << 20, shows="64MiB")
    max_audio: Count = setting("BYTES", 25 << 20)
    max_audio_seconds: Positive = setting("SECONDS", 1800.0)
    max_recordings: Count = setting("N", 16)
    max_recordings_per_client: Count | None = setting("N", shows="half of --max-recordings")
    max_live_seconds: Positive = setting("SECONDS", 3600.0)
    body_timeout: Positive = setting("SECONDS", 30.0)
    model_folders: tuple[str, ...] = setting("DIR", (), flag="--model-folder")
    memory_budget: Count | None = setting("SIZE", shows="no limit")
    unload_idle: bool = False


@dataclass(frozen=True)
class KeyLimits:
    """Limits and rights of a key. These lines are the help of `pybeam key`, too. Others raise ValueError.

    Attributes:
        requests_per_minute: Requests that may begin. They may come at once; then the key gains one after the
            other.
        tokens_per_minute: Tokens of sources and outputs; likewise.
        audio_seconds_per_minute: Seconds of recordings; likewise.
        requests_per_day: Requests that may begin from midnight to midnight, UTC.
        tokens_per_day: Tokens of sources and outputs; likewise.
        audio_seconds_per_day: Seconds of recordings; likewise.
        max_priority: Highest priority of its requests, in place of the server's --max-priority. Below 0 its
            requests let others go first.
        admin: It may load, swap and unload models.
    """

    requests_per_minute: Count | None = setting("N")
    tokens_per_minute: Count | None = setting("N")
    audio_seconds_per_minute: Count | None = setting("N")
    requests_per_day: Count | None = setting("N")
    tokens_per_day: Count | None = setting("N")
    audio_seconds_per_day: Count | None = setting("N")
    max_priority: Annotated[int, IntRange(-8, 8)] | None = setting("N")
    admin: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.admin, bool):
            raise ValueError(f"`admin` must be true or false, but is {self.admin!r}")
        for one in fields(self):
            value, is_priority = getattr(self, one.name), one.name == "max_priority"
            if value is None or one.name == "admin":
                continue
            least, most = (-8, 8) if is_priority else (1, math.inf)
            # True is an int, too
            if type(value) is not int or not least <= value <= most:
                expected = "from -8 to 8" if is_priority else "of at least 1"
                raise ValueError(
                    f"`{one.name.replace('_', '-')}` must be a whole number {expected}, but is {value!r}"
                )
