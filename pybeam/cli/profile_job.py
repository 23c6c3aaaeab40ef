"""One run of `pybeam profile`: model, sources and measurement put together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
import torch

import pybeam
from pybeam.cli.profile_sources import random_sources, read_lines
from pybeam.cli.sections import with_flags
from pybeam.engine.schedule import Schedule
from pybeam.profile.measure import measure
from pybeam.profile.report import as_dict, as_text
from pybeam.search.algorithms import Algorithm

NUM_SOURCES, SOURCE_LENGTH = 64, (32, 32)


@dataclass(frozen=True)
class Job:
    """What the command line asked for."""

    algorithm: Algorithm
    schedule: Schedule
    model_dirs: tuple[str, ...]
    input_path: str | None
    lines: int | None
    source_length: tuple[int, int] | None
    source_lang: str | None
    target_lang: str | None
    steps: int | None
    warmup: int
    repeats: int
    trace_path: str | None
    is_json: bool
    threads: int | None
    device: str
    dtype: str
    backend: str

    def run(self) -> int:
        """Measure and print; returns the exit code."""
        self._check_trace()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        decoder, requests = self._load()
        trace = None if self.trace_path is None else Path(self.trace_path)
        try:
            profile = measure(
                decoder, requests, warmup=self.warmup, repeats=self.repeats, trace=trace
            )
        except (pybeam.DecodeError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        run = {
            "model": repr(decoder.model),
            "algorithm": repr(self.algorithm),
            "schedule": repr(self.schedule),
            "threads": torch.get_num_threads(),
            "sources": len(requests),
            "repeats": self.repeats,
        }
        numbers = {"run": run, **as_dict(profile)}
        click.echo(json.dumps(numbers, indent=1) if self.is_json else as_text(numbers))
        return 0

    def _check_trace(self) -> None:
        """Before minutes of measuring, not after them."""
        if self.trace_path is None:
            return
        try:
            open(self.trace_path, "ab").close()
        except OSError as error:
            raise click.ClickException(f"--trace {self.trace_path}: {error.strerror}") from error

    def _load(self) -> tuple[pybeam.Decoder, list]:
        try:
            model = pybeam.load_model(self.model_dirs, device=self.device, dtype=self.dtype)
        except (ImportError, OSError, ValueError) as error:
            raise click.ClickException(with_flags(error)) from error
        try:
            decoder = pybeam.Decoder(model, self.algorithm, self.schedule, self.backend)
        except ValueError as error:
            message = with_flags(error)
            if self.steps is not None:
                message = message.replace("--max-length", "--steps")
            raise click.UsageError(message) from error
        return decoder, self._requests(model)

    def _requests(self, model) -> list:
        if self.input_path is None:
            return random_sources(
                model, self.lines or NUM_SOURCES, self.source_length or SOURCE_LENGTH
            )
        try:
            tokenizer = pybeam.load_tokenizer(
                self.model_dirs[0], source_lang=self.source_lang, target_lang=self.target_lang
            )
        except (OSError, ValueError) as error:
            raise click.ClickException(with_flags(error)) from error
        return read_lines(self.input_path, tokenizer, model.max_positions, self.lines)
