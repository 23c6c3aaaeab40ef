"""`pybeam compare`: searches beside one another, on lines of text and their references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from pybeam.cli.files import check_writable
from pybeam.cli.loading import model_folders
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.declare import Whole, option, section, take
from pybeam.cli.options.errors import as_failures, as_usage_errors, message_of, reason_of
from pybeam.cli.options.files import FormOptions, ModelOptions, OneModel
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import DeviceOptions, ScheduleOptions
from pybeam.cli.options.toml_files import defaults_of, read_toml

if TYPE_CHECKING:
    from pybeam.study import Exact
    from pybeam.text.tokenizer import Tokenizer

TABLES = ("search", "against")
EXACT = "exact"
# options of `pybeam.study.Exact`, without the dashes
OF_EXACT = ("max-length", "min-length", "width", "together", "max-expansions")
QUIET = {"help": "No progress bar; errors remain."}


@dataclass(frozen=True)
class CompareOptions:
    """The lines that are decoded, and the measures that are taken.

    Attributes:
        input_path: UTF-8 text, one source per line; for a recogniser, names of sound files.
        reference_path: UTF-8 text, the right output of each line. Without it, quality is not measured.
        metrics: bleu, chrf, ter (sacrebleu), wer (jiwer) or exact_match; may be given many times.
        journal: File that keeps what is decoded. A comparison that was interrupted goes on from it; one with
            more searches, or lines behind the others, decodes only what is new.
        output_paths: Also write the comparison to a file, in the form that its name says: .txt, .html, .json
            (with all outputs), .csv, or a picture, .png or .svg; may be given many times.
        latency: Decode the first N lines alone, too, to see how long one takes.
        samples: Samples of lines, for intervals and p-values; 0: none.
        seed: The seed of these samples.
    """

    input_path: Annotated[str, click.Path()] = option("FILE", flag="--input", required=True)
    reference_path: Annotated[str, click.Path()] | None = option("FILE", flag="--reference")
    metrics: tuple[str, ...] = option("NAME", (), flag="--metric", shows="bleu and chrf")
    journal: Annotated[str, click.Path()] | None = option("FILE")
    output_paths: tuple[Annotated[str, click.Path()], ...] = option("FILE", (), flag="--output")
    latency: Whole = option("N", 20)
    samples: Whole = option("N", 1000)
    seed: Whole = option("N", 12345)


def read_searches(context: click.Context, _parameter: click.Parameter, path: str) -> dict[str, Any]:
    """Take a file's settings as defaults of the options; returns its searches."""
    if context.resilient_parsing:
        return {}
    found = read_toml(path, path)
    tables = {name: found.pop(name, {}) for name in TABLES}
    known = "`pybeam compare`, whose --help lists them; searches stand in tables [search.NAME]"
    context.default_map = defaults_of(context.command.params, found, path, known)
    searches = tables["search"]
    is_right = isinstance(searches, dict) and all(isinstance(v, dict) for v in searches.values())
    if not searches or not is_right or not isinstance(tables["against"], dict):
        raise click.UsageError(
            f"{path} must have a table [search.NAME] for each search, and may have one [against]"
        )
    return tables


SEARCHES = click.Argument(
    ["searches"], metavar="FILE", type=click.Path(), is_eager=True, callback=read_searches
)


@click.command(
    cls=SectionCommand,
    short_help="Compare searches: quality, search errors, cost.",
    params=[SEARCHES],
    sections=[
        section(
            "Files",
            OneModel,
            ModelOptions,
            CompareOptions,
            names=[
                "model_dir",
                "revision",
                "input_path",
                "reference_path",
                "output_paths",
                "journal",
                "source_lang",
                "target_lang",
            ],
        ),
        section("Measures", CompareOptions, names=["metrics", "latency", "samples", "seed"]),
        section(
            "Speed; no result but times depends on these",
            ScheduleOptions,
            DeviceOptions,
            cache_dtype=None,
            check_finite=None,
            backend=None,
        ),
        section("Form of the output", FormOptions, names=["quiet"], quiet=QUIET),
    ],
)
def compare(searches: dict[str, Any], **values: Any) -> int:
    """Decode the same lines with several searches, and show what they find and what they cost.

    FILE is a TOML file. Each table [search.NAME] has options of `pybeam translate`, without the dashes. The
    first one is the baseline, which others are tested against. The file may also have the options below; the
    command line goes before it.

    \b
      model = "bible-es-en"
      input = "in.es"
      reference = "out.en"
    \b
      [search.greedy]
      algorithm = "greedy"
    \b
      [search."beam of 5"]
      width = 5
      length-penalty = 1.0
    \b
      [search.pruned]
      algorithm = "variable"
      width = 20
      threshold = 2.0
    \b
      [against]
      algorithm = "exact"
      max-length = 20
      max-expansions = 100000

    A row of the table is a search. "log prob" is the mean log-probability of its outputs by the model alone;
    "search errors" is the percentage of lines for which a more probable output is known, from the other
    searches or from [against]. The algorithm "exact" finds the most probable output with proof, and needs
    max-length. Expansions are hypotheses sent through the model for a line.

    \b
    Examples:
      pybeam compare searches.toml
      pybeam compare searches.toml --journal journal.jsonl --output table.html --output figure.svg
      pybeam compare searches.toml --input test.es --reference test.en --metric wer

    \b
    Exit codes:
      0    the table is there
      1    a file or a language is missing, a package is missing, or a search fails for every line
      2    options that are wrong or contradict each other
      130  Ctrl-C; what is in the journal stays
    """
    from pybeam.study.tables import FORMATS

    options, device = take(CompareOptions, values), take(DeviceOptions, values)
    for path in options.output_paths:
        if Path(path).suffix not in FORMATS:
            raise click.UsageError(f"--output must end in {', '.join(FORMATS)}, but is {path}")
        check_writable(path)
    schedule = take(ScheduleOptions, values).build()
    is_quiet = values.pop("quiet")
    [folder] = model_folders([values.pop("model_dir")], values.pop("revision"))
    import torch

    import pybeam

    if device.threads is not None:
        torch.set_num_threads(device.threads)
    with as_failures():
        languages = {name: values.pop(f"{name}_lang") for name in ("source", "target")}
        model = pybeam.load(folder, device=device.device, dtype=device.dtype, **languages)
        lines = _lines(options.input_path)
        references = None if options.reference_path is None else _lines(options.reference_path)
        tokenizer = getattr(model, "tokenizer", None)
    assert not values, "these options would be ignored"
    named = {
        name: built(f"[search.{name}]", own, folder, tokenizer)
        for name, own in searches["search"].items()
    }
    against = searches["against"]
    judge = built("[against]", against, folder, tokenizer) if against else None
    with as_usage_errors():
        try:
            found = pybeam.compare(
                named,
                model,
                lines,
                references,
                metrics=list(options.metrics) or None,
                against=judge,
                schedule=schedule,
                latency=options.latency,
                samples=options.samples,
                seed=options.seed,
                journal=options.journal,
                progress=not is_quiet,
            )
        except (ImportError, OSError, RuntimeError) as error:
            raise click.ClickException(reason_of(error)) from error
    click.echo(found)
    with as_failures():
        for path in options.output_paths:
            found.save(path)
    return 0


def _lines(path: str) -> list[str]:
    """The texts of a file, as `pybeam translate` reads them."""
    from pybeam.cli.sources import LineReader, Lines
    from pybeam.corpus.tasks import text_of

    texts: list[str] = []
    with open(path, "rb", buffering=0) as file:
        lines = Lines(LineReader(file.fileno()))
        while not lines.has_ended:
            texts += [text_of(field) for (field,) in lines.run()]
    if lines.error is not None:
        raise ValueError(f"{path}: {lines.error}")
    return texts


def built(said: str, table: Mapping[str, Any], folder: str, tokenizer: Tokenizer | None) -> Any:
    """Build the search of a table. Raises UsageError, which begins with what was `said`, for a wrong one."""
    if table.get("algorithm") == EXACT:
        return _exact(said, table)
    command = SectionCommand("search", sections=SECTIONS)
    try:
        known = "a search; `pybeam translate --help` lists them"
        # as a command line has them, so that the same checks hold
        texts = {name: _as_text(value) for name, value in table.items()}
        defaults = defaults_of(command.params, texts, said, known)
        context = command.make_context("search", [], default_map=defaults)
        return take(AlgorithmOptions, context.params).build_for(folder, tokenizer)
    except click.UsageError as error:
        message = error.format_message()
        raise click.UsageError(message if said in message else f"{said}: {message}") from error


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [str(one) for one in value]
    return value if isinstance(value, bool) else str(value)


def _exact(said: str, table: Mapping[str, Any]) -> Exact:
    from pybeam.study import Exact

    given = {name.replace("_", "-"): value for name, value in table.items() if name != "algorithm"}
    unknown = sorted(given.keys() - {*OF_EXACT})
    if unknown:
        raise click.UsageError(
            f"{said}: {unknown[0]!r} is no option of an exact search; there are {', '.join(OF_EXACT)}"
        )
    if "max-length" not in given:
        raise click.UsageError(f"{said}: an exact search needs max-length")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise click.UsageError(f"{said}: {name} must be a whole number, but is {value!r}")
    try:
        return Exact(**{name.replace("-", "_"): value for name, value in given.items()})
    except ValueError as error:
        raise click.UsageError(f"{said}: {message_of(error)}") from error
