"""`pybeam profile`: show where the time of a decode goes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.files import open_input
from pybeam.cli.loading import Setup
from pybeam.cli.options import files
from pybeam.cli.options.algorithm import SECTIONS, AlgorithmOptions
from pybeam.cli.options.errors import flag
from pybeam.cli.options.sections import Section, SectionCommand, option, take
from pybeam.cli.options.speed import SPEED
from pybeam.cli.random_sources import SourceLength, random_sources

if TYPE_CHECKING:
    from pybeam.decoder import Decoder
    from pybeam.models.base import Model
    from pybeam.request import Request
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer

# random sources: how many, of how many tokens, for how many steps
NUM_SOURCES, SOURCE_LENGTH, NUM_STEPS = 64, (32, 32), 32

SOURCES = Section(
    "What to decode",
    [
        option(
            "--input",
            "input_path",
            metavar="FILE",
            type=click.Path(),
            help="UTF-8 text, one source per line; nothing: random sources, which need no tokenizer.",
        ),
        option(
            "--lines",
            type=click.IntRange(1),
            metavar="N",
            show_default=f"all of --input; {NUM_SOURCES} random ones",
            help="How many sources.",
        ),
        option(
            "--source-length",
            type=SourceLength(),
            metavar="TOKENS",
            show_default=str(SOURCE_LENGTH[0]),
            help="Tokens of a random source, such as 32 or 10:60.",
        ),
        option(
            "--steps",
            type=click.IntRange(1),
            metavar="N",
            show_default=f"{NUM_STEPS} for random sources",
            help="Let every source take exactly N steps, whatever the model says: sets --min-length and "
            "--max-length, since nobody knows where the output for random sources ends.",
        ),
    ],
)
MEASUREMENT = Section(
    "Measurement",
    [
        option(
            "--warmup",
            type=click.IntRange(0),
            default=1,
            help="Decodes that do not count.",
        ),
        option(
            "--repeats",
            type=click.IntRange(1),
            default=5,
            help="Decodes that count, with and without the profiler each; of both the fastest is shown.",
        ),
        option(
            "--trace",
            "trace_path",
            metavar="FILE.json",
            type=click.Path(),
            help="Write the chrome trace; open it in https://ui.perfetto.dev or chrome://tracing.",
        ),
        option("--json", "is_json", is_flag=True, help="Print the numbers as JSON, times in ms."),
    ],
)


@click.command(
    cls=SectionCommand,
    short_help="Show where the time of decoding goes.",
    sections=[
        Section("Files", [files.MODELS, files.SOURCE_LANG, files.TARGET_LANG]),
        SOURCES,
        MEASUREMENT,
        *SECTIONS,
        SPEED,
    ],
)
def profile(**values: Any) -> int:
    """Show where the time of decoding goes: each phase of a step, and the time outside of operators.

    The command decodes the same sources again and again, in turn with and without torch's profiler. It
    prints a table: the phases with their share of a step, the share of operators (CPU) or kernels (GPU)
    in each, the gap in which nothing computes, and the operators that take most time.

    \b
    Phases (ranges `pybeam::model` and so on in the trace):
      encode   sources through the encoder
      plan     which hypotheses move, memory for them
      model    one step of the decoder
      select   processors, and the best continuations
      commit   hypotheses and token trees brought up to date
      close    results of sources that are done
      outside  the rest of the loop

    \b
    Examples:
      pybeam profile --model examples/models/bible-es-en --threads 2
      pybeam profile --model DIR --lines 13 --schedule batch --trace trace.json
      pybeam profile --model DIR --input in.es --algorithm variable --width 50 \\
          --threshold 1.6 --max-candidates 3

    \b
    Exit codes:
      0  the profile was printed
      1  a file is missing or wrong, or a source failed
      2  options that are wrong or contradict each other
    """
    _set_lengths(values)
    _reject_meaningless(values)
    setup = Setup.take(AlgorithmOptions.take(values), values)
    return _Measurement(setup, take(_SourceOptions, values), **values).run()


@dataclass(frozen=True)
class _SourceOptions:
    """The options for sources; None: not given."""

    input_path: str | None
    lines: int | None
    source_length: tuple[int, int] | None
    steps: int | None


@dataclass(frozen=True)
class _Measurement:
    """One run of the command."""

    setup: Setup
    sources: _SourceOptions
    warmup: int
    repeats: int
    trace_path: str | None
    is_json: bool

    def run(self) -> int:
        """Measure and print; returns the exit code."""
        import torch

        from pybeam.decoder import DecodeError
        from pybeam.inspect.profile import as_dict, as_text, measure

        self._check_trace()
        asked = self.setup.algorithm.processors
        has_text = self.sources.input_path is not None or asked.no_unk
        tokenizer = self.setup.load_tokenizer() if has_text else None
        algorithm = self.setup.build_algorithm(tokenizer)
        model = self.setup.load_model()
        decoder = self._decoder(model, algorithm)
        requests = self._requests(model, tokenizer)
        trace = None if self.trace_path is None else Path(self.trace_path)
        try:
            profile = measure(
                decoder, requests, warmup=self.warmup, repeats=self.repeats, trace=trace
            )
        except (DecodeError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        run = {
            "model": repr(decoder.model),
            "algorithm": repr(algorithm),
            "schedule": repr(self.setup.schedule),
            "threads": torch.get_num_threads(),
            "sources": len(requests),
            "repeats": self.repeats,
        }
        numbers = {"run": run, **as_dict(profile)}
        click.echo(json.dumps(numbers, indent=1) if self.is_json else as_text(numbers))
        return 0

    def _decoder(self, model: Model, algorithm: Algorithm) -> Decoder:
        steps, limit = self.sources.steps, model.max_positions
        if steps is not None and limit is not None and steps > limit:
            raise click.UsageError(
                f"--steps must be at most the model's {limit} positions, but is {steps}"
            )
        return self.setup.build_decoder(model, algorithm)

    def _check_trace(self) -> None:
        """Raise an error for a bad trace file now, not after minutes of measuring."""
        if self.trace_path is None:
            return
        try:
            open(self.trace_path, "ab").close()
        except OSError as error:
            raise click.ClickException(f"--trace {self.trace_path}: {error.strerror}") from error

    def _requests(self, model: Model, tokenizer: Tokenizer | None) -> list[Any]:
        path = self.sources.input_path
        if path is None:
            lengths = self.sources.source_length or SOURCE_LENGTH
            return random_sources(model, self.sources.lines or NUM_SOURCES, lengths)
        assert tokenizer is not None
        return read_lines(path, tokenizer, model.max_positions, self.sources.lines)


def read_lines(
    path: str,
    tokenizer: Tokenizer,
    max_tokens: int | None,
    num_lines: int | None,
) -> list[Request]:
    """Read the first `num_lines` lines of a file (None: all) as requests."""
    from pybeam.cli.sources import LineReader, Lines
    from pybeam.corpus.tasks import text_request

    requests: list[Request] = []
    with open_input(path) as file:
        lines = Lines(LineReader(file.fileno()))
        while not lines.has_ended and (num_lines is None or len(requests) < num_lines):
            left = None if num_lines is None else num_lines - len(requests)
            for line in islice(lines.run(), left):
                request, warning = text_request(tokenizer, max_tokens, line[0])
                requests.append(request)
                if warning:
                    click.echo(f"line {len(requests)}: {warning}", err=True)
    if lines.error is not None:
        raise click.ClickException(lines.error)
    if not any(len(request.source) for request in requests):
        raise click.ClickException(
            f"--input {path} must have a line that is not empty, but has none; leave it out for "
            "random sources"
        )
    return requests


def _set_lengths(values: dict[str, Any]) -> None:
    """Set the length of outputs that --steps asks for."""
    given = [name for name in ("min_length", "max_length") if values[name] is not None]
    if values["steps"] is None:
        if given or values["input_path"] is not None:
            return
        values["steps"] = NUM_STEPS
    elif given:
        raise click.UsageError(f"--steps sets {flag(given[0])}; give one of them")
    values["min_length"], values["max_length"] = values["steps"] - 1, values["steps"]


def _reject_meaningless(values: dict[str, Any]) -> None:
    if values["input_path"] is not None and values["source_length"] is not None:
        raise click.UsageError(
            "--source-length has no meaning with --input, whose lines have their own; leave one out"
        )
    for name in ("source_lang", "target_lang"):
        if values["input_path"] is None and values[name] is not None:
            raise click.UsageError(
                f"{flag(name)} has no meaning for random sources; give --input FILE"
            )
