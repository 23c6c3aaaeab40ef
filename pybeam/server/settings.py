"""The settings of a server beside its models: where it listens, and what one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Settings of a server. `pybeam serve --help` explains each.

    Attributes:
        host, port: where it listens; port 0: any free one.
        max_waiting: requests that may wait for each model.
        max_waiting_work: their source tokens times width, summed; None: no limit.
        width_by_load: pairs of a number of waiting requests and the width of beams from there on.
        max_body, max_audio: bytes of a body, and of one that holds a recording.
        max_audio_seconds: length of a recording.
        max_recordings: recordings that are transcribed at a time.
        max_sources: texts, or prompts, in one request.
        max_source_tokens: ids of a source.
        max_width: beam width and number of outputs that a request may ask for.
        timeout: seconds after which a request without a result is given up; also the most it may ask for.
        body_timeout: seconds in which a body must have come.
        keep_alive: seconds for which a connection without a request stays open.
        shutdown_timeout: seconds in which a server that is told to stop finishes what it has.
        otlp_endpoint: OpenTelemetry's collector, to which spans are sent; None: there are none.
        cors_origins: web pages that may ask from a browser.
        allowed_hosts: names by which clients know the server; none: those of this machine if `host` is a
            loopback address, else all.
        max_priority: the highest priority that a request may ask for.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_waiting: int = 256
    max_waiting_work: int | None = None
    width_by_load: tuple[tuple[int, int], ...] = ()
    max_body: int = 1 << 20
    max_audio: int = 25 << 20
    max_audio_seconds: float = 1800.0
    max_recordings: int = 16
    max_sources: int = 64
    max_source_tokens: int = 1024
    max_width: int = 32
    timeout: float = 60.0
    body_timeout: float = 30.0
    keep_alive: float = 75.0
    shutdown_timeout: float = 30.0
    otlp_endpoint: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_priority: int = 0
