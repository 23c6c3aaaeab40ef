"""The command line of `pybeam profile`."""

from __future__ import annotations

import click

from pybeam.cli.profile_job import NUM_SOURCES, SOURCE_LENGTH, Job
from pybeam.cli.profile_sources import SourceLength
from pybeam.cli.search_options import (
    ScheduleOptions,
    SearchOptions,
    build_algorithm,
    build_schedule,
    take,
)
from pybeam.cli.sections import SectionCommand, flag, option
from pybeam.cli.translate import translate

NUM_STEPS = 32
# of `pybeam translate`, under the same headings
SHARED = ("Search", "Pruning", "Processors", "Speed")
SHARED_FILES = ("model_dirs", "source_lang", "target_lang")

sources = option("What to decode")
measurement = option("Measurement")


@click.command(
    cls=SectionCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@sources(
    "--input",
    "input_path",
    metavar="FILE",
    type=click.Path(),
    help="UTF-8 text, one source per line; nothing: random sources, which need no tokenizer.",
)
@sources(
    "--lines",
    type=click.IntRange(1),
    metavar="N",
    show_default=f"all of --input; {NUM_SOURCES} random ones",
    help="How many sources.",
)
@sources(
    "--source-length",
    type=SourceLength(),
    metavar="TOKENS",
    show_default=str(SOURCE_LENGTH[0]),
    help="Tokens of a random source, such as 32 or 10:60.",
)
@sources(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    show_default=f"{NUM_STEPS} for random sources",
    help="Let every source take exactly N steps, whatever the model says: sets --min-length and "
    "--max-length, since nobody knows where the output for random sources ends.",
)
@measurement(
    "--warmup",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Decodes that do not count.",
)
@measurement(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Decodes that count, with and without the profiler each; of both the fastest is shown.",
)
@measurement(
    "--trace",
    "trace_path",
    metavar="FILE.json",
    type=click.Path(),
    help="Write the chrome trace; open it in https://ui.perfetto.dev or chrome://tracing.",
)
@measurement("--json", "is_json", is_flag=True, help="Print the numbers as JSON, times in ms.")
def profile(**values) -> int:
    """Show where the time of decoding goes: each phase of a step, and what no operator covers.

    Decodes the same sources again and again, in turn without and under torch's profiler, and
    prints a table: phases with their share of a step, in it the share of operators (CPU) or kernels
    (GPU), the gap in which nothing computes, and the operators that take most.

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
          --threshold 1.5 --max-candidates 5

    \b
    Exit codes:
      0  the profile was printed
      1  a file is missing or wrong, or a source failed
      2  options that are wrong or contradict each other
    """
    _set_lengths(values)
    _reject_meaningless(values)
    algorithm = build_algorithm(take(SearchOptions, values))
    schedule = build_schedule(take(ScheduleOptions, values))
    return Job(algorithm, schedule, **values).run()


profile.params = [
    *(parameter for parameter in translate.params if parameter.name in SHARED_FILES),
    *profile.params,
    *(parameter for parameter in translate.params if parameter.section.startswith(SHARED)),
]


def _set_lengths(values: dict) -> None:
    """What --steps says about the length of the output."""
    lengths = ("min_length", "max_length")
    given = [name for name in lengths if values[name]]
    if values["steps"] is None:
        if given or values["input_path"] is not None:
            return
        values["steps"] = NUM_STEPS
    elif given:
        raise click.UsageError(f"--steps sets {flag(given[0])}; give one of them")
    values["min_length"], values["max_length"] = values["steps"] - 1, values["steps"]


def _reject_meaningless(values: dict) -> None:
    if values["input_path"] is not None and values["source_length"] is not None:
        raise click.UsageError(
            "--source-length has no meaning with --input, whose lines have their own; leave one out"
        )
    for name in ("source_lang", "target_lang"):
        if values["input_path"] is None and values[name] is not None:
            raise click.UsageError(
                f"{flag(name)} has no meaning for random sources; give --input FILE"
            )
