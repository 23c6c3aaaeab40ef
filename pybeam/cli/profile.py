"""`pybeam profile`: show where the time of a decode goes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from pybeam.cli.files import check_writable, open_input
from pybeam.cli.loading import Setup
from pybeam.cli.options.declare import Count, FilePath, Parsed, Whole, option, section, take
from pybeam.cli.options.errors import flag
from pybeam.cli.options.files import ModelOptions
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pybeam.decoder import Decoder
    from pybeam.models.base import Model
    from pybeam.request import Request
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer

    AsText = Callable[[dict[str, Any]], str]


def _bounds(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError
    return bounds


SourceLength = Annotated[
    tuple[int, int],
    Parsed(
        _bounds,
        "must be a number of tokens such as 32, or two such as 10:60, the smaller one first, but is {!r}",
    ),
]

# random sources: how many, of how many tokens, for how many steps
NUM_SOURCES, SOURCE_LENGTH, NUM_STEPS = 64, (32, 32), 32


@dataclass(frozen=True)
class SourceOptions:
    """The sources; None: not given.

    Attributes:
        input_path: UTF-8 text, one source per line; nothing: random sources, which need no tokenizer.
        lines: How many sources.
        source_length: Tokens of a random source, such as 32 or 10:60.
        steps: Let every source take exactly N steps, whatever the model says: sets --min-length and
            --max-length, since nobody knows where the output for random sources ends.
    """

    input_path: FilePath | None = option("FILE", flag="--input")
    lines: Count | None = option("N", shows=f"all of --input; {NUM_SOURCES} random ones")
    source_length: SourceLength | None = option("TOKENS", shows=str(SOURCE_LENGTH[0]))
    steps: Count | None = option("N", shows=f"{NUM_STEPS} for random sources")


@dataclass(frozen=True)
class MeasurementOptions:
    """The measurement, and the form in which it is shown.

    Attributes:
        warmup: Decodes that do not count.
        repeats: Decodes that count, with and without the profiler each; of both the fastest is shown.
        inside: Show each kernel of a step in place of its phases: time, bytes and share of the limit.
        trace_path: Write the chrome trace; open it in https://ui.perfetto.dev or chrome://tracing.
        is_json: Print the numbers as JSON, times in ms.
    """

    warmup: Whole = 1
    repeats: Count = 5
    inside: bool = False
    trace_path: FilePath | None = option("FILE.json", flag="--trace")
    is_json: bool = option(default=False, flag="--json")


@click.command(
    cls=SectionCommand,
    short_help="Show where the time of decoding goes.",
    sections=[
        section("Files", ModelOptions),
        section("What to decode", SourceOptions),
        section("Measurement", MeasurementOptions),
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
      model    one step of the decoder; where C++ does many steps in one call, also select
      select   processors, and the best continuations
      commit   hypotheses and token trees brought up to date
      replay   on a GPU with CUDA graphs: all from plan to report in one
      report   what the step has done, read by the host
      close    results of sources that are done
      outside  the rest of the loop

    --inside looks into a step instead, where C++ does all of a step in one call. It lists the kernels in
    their order: calls, time, share of the step, bytes and products, and the share of the machine's limit
    for those that the kernel reaches. On a CPU, counters in the kernels measure the time, in turn with
    decodes without counters; the last line compares both. On a GPU the profiler times the kernels of one
    decode, and their work follows from the sizes of the network.

    \b
    Examples:
      pybeam profile --model bible-es-en --threads 2
      pybeam profile --model DIR --lines 13 --schedule batch --trace trace.json
      pybeam profile --model DIR --lines 1 --algorithm greedy --inside
      pybeam profile --model DIR --input in.es --algorithm variable --width 50 \\
          --threshold 2.0 --max-candidates 3

    \b
    Exit codes:
      0  the profile was printed
      1  a file is missing or wrong, or a source failed
      2  options that are wrong or contradict each other
    """
    _set_lengths(values)
    _reject_meaningless(values)
    setup, sources = Setup.take(values), take(SourceOptions, values)
    return _Measurement(setup, sources, take(MeasurementOptions, values)).run()


@dataclass(frozen=True)
class _Measurement:
    """One run of the command."""

    setup: Setup
    sources: SourceOptions
    options: MeasurementOptions

    def run(self) -> int:
        """Measure and print; returns the exit code."""
        import torch

        from pybeam.decoder import DecodeError

        if self.options.trace_path is not None:
            check_writable(self.options.trace_path, "--trace")
        has_text = self.sources.input_path is not None or self.setup.algorithm.no_unk
        tokenizer = self.setup.load_tokenizer() if has_text else None
        algorithm = self.setup.build_algorithm(tokenizer)
        model = self.setup.load_model()
        decoder = self._decoder(model, algorithm)
        requests = self._requests(model, tokenizer)
        try:
            numbers, as_text = self._measured(decoder, requests)
        except (DecodeError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        run = {
            "model": repr(decoder.model),
            "algorithm": repr(algorithm),
            "schedule": repr(self.setup.schedule),
            "threads": torch.get_num_threads(),
            "sources": len(requests),
            "repeats": self.options.repeats,
        }
        numbers = {"run": run, **numbers}
        click.echo(json.dumps(numbers, indent=1) if self.options.is_json else as_text(numbers))
        return 0

    def _measured(self, decoder: Decoder, requests: list[Any]) -> tuple[dict[str, Any], AsText]:
        """The numbers, and what makes a text of them."""
        counts = {"warmup": self.options.warmup, "repeats": self.options.repeats}
        if self.options.inside:
            from pybeam.inspect import inside

            found = inside.measure_inside(decoder, requests, **counts)
            return {"inside": inside.as_dict(found)}, inside.as_text
        from pybeam.inspect import profile as phases

        path = self.options.trace_path
        trace = None if path is None else Path(path)
        measured = phases.measure(decoder, requests, **counts, trace=trace)
        return phases.as_dict(measured), phases.as_text

    def _decoder(self, model: Model, algorithm: Algorithm) -> Decoder:
        steps, limit = self.sources.steps, model.max_positions
        if steps is not None and limit is not None and steps > limit:
            raise click.UsageError(
                f"--steps must be at most the model's {limit} positions, but is {steps}"
            )
        return self.setup.build_decoder(model, algorithm)

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


def random_sources(model: Model, number: int, lengths: tuple[int, int]) -> list[Any]:
    """Make sources of random ids or frames, the same in every run, with lengths uniform between two bounds.

    Raises UsageError if sources are longer than the model can read.
    """
    import torch

    from pybeam.engine import warm_up

    limit = None if model.takes_features else model.max_positions
    if limit is not None and lengths[1] > limit:
        raise click.UsageError(
            f"--source-length must be at most the model's {limit} positions, but is {lengths[1]}"
        )
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(lengths[0], lengths[1] + 1, (number,), generator=generator)  # [n]
    return warm_up.random_sources(model, chosen.tolist(), generator)


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
    if values["inside"] and values["trace_path"] is not None:
        raise click.UsageError(
            "--trace has no meaning with --inside, which asks no profiler; leave one out"
        )
    if values["input_path"] is not None and values["source_length"] is not None:
        raise click.UsageError(
            "--source-length has no meaning with --input, whose lines have their own; leave one out"
        )
    for name in ("source_lang", "target_lang"):
        if values["input_path"] is None and values[name] is not None:
            raise click.UsageError(
                f"{flag(name)} has no meaning for random sources; give --input FILE"
            )
