"""`pybeam score`: lines and their translations in, log-probabilities out."""

from __future__ import annotations

import click

from pybeam.cli.job import ScoreJob
from pybeam.cli.search_options import (
    PROCESSORS,
    ScheduleOptions,
    build_processors,
    build_schedule,
    build_scoring,
    take,
)
from pybeam.cli.sections import SectionCommand, option
from pybeam.cli.translate import translate

# of `pybeam translate`, before and behind the options that are declared here
FILES = ("model_dirs", "input_path")
SHARED = ("output_path", "source_lang", "target_lang", "scoring")
SECTIONS = ("Processors", "Speed")

files = option("Files")
form = option("Form of the output")


@click.command(cls=SectionCommand, short_help="Score given translations.")
@files(
    "--target",
    "target_path",
    required=True,
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="UTF-8 text, the translation of each line of the input; `-`: stdin.",
)
@form(
    "--json",
    "is_json",
    is_flag=True,
    help="Write one JSON object per line: index (from 0), text, score, final_score, and log_probs, "
    "one per token and one for the end; null for minus infinity.",
)
def score(**values) -> int:
    """Score translations with a model that was loaded from DIR.

    Writes one number per line of the input: the log-probability that the model gives to the line of
    the same number in --target, its end included, normalised as --scoring says. What `pybeam
    translate --scores` writes gets the same number again, if its text is split into the same tokens.

    \b
    Examples:
      pybeam score --model examples/models/bible-es-en --input in.es --target out.en
      pybeam score --model DIR --input in.es --target out.en --scoring power:1 --json

    \b
    Exit codes:
      0    every line was scored
      1    a line failed (the others are there), the files have different numbers of lines or are
           not UTF-8, or a file or a language is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written
      141  the reader of the output went away
    """
    import pybeam

    if values["input_path"] == values["target_path"] == "-":
        raise click.UsageError("--input and --target cannot both be stdin; name one of the files")
    algorithm = pybeam.greedy(
        scoring=build_scoring(values.pop("scoring")),
        processors=build_processors({name: values.pop(name) for name in PROCESSORS}),
    )
    schedule = build_schedule(take(ScheduleOptions, values))
    return ScoreJob(algorithm, schedule, has_scores=True, no_unk=False, **values).run()


def _shared(names: tuple[str, ...]) -> list[click.Parameter]:
    known = {parameter.name: parameter for parameter in translate.params}
    return [known[name] for name in names]


score.params = [
    *_shared(FILES),
    score.params[0],
    *_shared(SHARED),
    *(parameter for parameter in translate.params if parameter.section.startswith(SECTIONS)),
    *score.params[1:],
    *_shared(("quiet",)),
]
