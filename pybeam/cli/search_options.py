"""From options to an algorithm, a schedule and a scoring; combinations without sense are errors."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pybeam.cli.sections import flag, with_flags

if TYPE_CHECKING:
    from pybeam.engine.schedule import Schedule
    from pybeam.processors import Processor
    from pybeam.scoring import Scoring
    from pybeam.search.algorithms import Algorithm

THRESHOLDS = ("threshold", "max_candidates", "relative_threshold", "local_threshold")
# options that are processors of these names, in the order in which they are applied
PROCESSORS = {
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram": "no_repeat_ngram",
    "suppress": "suppress_sequences",
    "eos_penalty": "eos_penalty",  # on log-probabilities, the others on logits
}
DEFAULT_WIDTH = 5
# greedy's output, many tokens at once; what each takes beside the common options
PARALLEL = {
    "jacobi": (),
    "gauss-seidel-jacobi": ("block",),
    "hybrid-jacobi": ("block", "horizon"),
    "adaptive-jacobi": (),
}


@dataclass(frozen=True)
class SearchOptions:
    """What the command line says about the search; None: not said."""

    algorithm: str
    width: int | None
    threshold: float | None
    max_candidates: int | None
    relative_threshold: float | None
    local_threshold: float | None
    block: int | None
    horizon: int | None
    n_best: int
    min_length: int
    max_length: int | None
    scoring: str
    temperature: float | None
    eos_penalty: float | None
    repetition_penalty: float | None
    no_repeat_ngram: int | None
    suppress: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ScheduleOptions:
    """What the command line says about the schedule; None: not said."""

    schedule: str
    batch_size: int | None
    batch_tokens: int | None
    epsilon: float | None
    row_budget: int | None
    max_wait: int | None


def _reject(options: SearchOptions, names: tuple[str, ...], remedy: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise click.UsageError(
                f"{flag(name)} has no meaning with --algorithm {options.algorithm}; {remedy}"
            )


def build_algorithm(options: SearchOptions) -> Algorithm:
    """The algorithm that the options describe. Raises UsageError if they contradict each other."""
    import pybeam

    common = dict(
        n_best=options.n_best,
        min_length=options.min_length,
        max_length=options.max_length,
        scoring=build_scoring(options.scoring),
        processors=build_processors({name: getattr(options, name) for name in PROCESSORS}),
    )
    takes = PARALLEL.get(options.algorithm, ())
    for name in ("block", "horizon"):
        if name not in takes:
            _reject(options, (name,), "use --algorithm hybrid-jacobi")
    has_one = options.algorithm == "greedy" or options.algorithm in PARALLEL
    if has_one:
        _reject(options, ("width", *THRESHOLDS), "use --algorithm fixed or variable")
        if options.n_best > 1:
            raise click.UsageError(
                f"--n-best {options.n_best} needs more than the one hypothesis of --algorithm "
                f"{options.algorithm}; use --algorithm fixed or variable with --width"
            )
    elif options.algorithm != "variable":
        _reject(options, THRESHOLDS, "use --algorithm variable")
    width = DEFAULT_WIDTH if options.width is None else options.width
    if not has_one and options.n_best > width:
        raise click.UsageError(
            f"--n-best {options.n_best} is more than --width {width} can finish; "
            f"use --width {options.n_best} or fewer hypotheses"
        )
    try:
        if options.algorithm == "greedy":
            return pybeam.greedy(**common)
        if options.algorithm in PARALLEL:
            given = {name: getattr(options, name) for name in takes}
            build = getattr(pybeam, options.algorithm.replace("-", "_"))
            return build(**{k: v for k, v in given.items() if v is not None}, **common)
        if options.algorithm == "fixed":
            return pybeam.fixed_beam(width, **common)
        if options.algorithm == "optimal":
            return pybeam.optimal_beam(width, **common)
        thresholds = {name: getattr(options, name) for name in THRESHOLDS}
        return pybeam.variable_beam(width, **thresholds, **common)
    except (TypeError, ValueError) as error:
        raise click.UsageError(with_flags(error)) from error


def build_processors(options: dict) -> list[Processor]:
    """The processors that the options `PROCESSORS` ask for.

    Raises UsageError for a value that makes no sense.
    """
    from pybeam import processors

    chain: list[Processor] = []
    for name in PROCESSORS:
        if options[name] in (None, ()):
            continue
        build = getattr(processors, PROCESSORS[name])
        try:
            chain.append(build(options[name]))
        except ValueError as error:
            # the first name in a message is that of the processor's argument
            message = re.sub(r"`\w+`", flag(name), str(error), count=1)
            raise click.UsageError(message) from error
    return chain


class TokenIds(click.ParamType):
    """Token ids joined by commas."""

    name = "ids"

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            ids = tuple(int(part) for part in value.split(","))
        except ValueError:
            ids = (-1,)
        if min(ids) < 0:
            self.fail(
                f"{value!r} must be token ids joined by commas, such as 3 or 12,5", param, ctx
            )
        return ids


def build_scoring(text: str) -> Scoring:
    """`raw`, `power:A`, `gnmt:A` or `reward:R[:RATIO]`. Raises UsageError otherwise."""
    import pybeam

    name, *values = text.split(":")
    builders = {"raw": (0, 0), "power": (1, 1), "gnmt": (1, 1), "reward": (1, 2)}
    if name not in builders or not builders[name][0] <= len(values) <= builders[name][1]:
        raise click.UsageError(
            f"--scoring must be raw, power:A, gnmt:A, reward:R or reward:R:RATIO with numbers for "
            f"the capital letters, such as power:1, but is {text!r}"
        )
    try:
        return getattr(pybeam.scoring, name)(*map(float, values))
    except ValueError as error:
        raise click.UsageError(f"--scoring {text}: {error}") from error


def build_schedule(options: ScheduleOptions) -> Schedule:
    """The schedule that the options describe. Raises UsageError if they contradict each other."""
    import pybeam

    kinds = {"batch": pybeam.Batch, "streaming": pybeam.Streaming, "fifo": pybeam.Fifo}
    if options.schedule == "batch" and options.epsilon is not None:
        raise click.UsageError(
            "--epsilon has no meaning with --schedule batch, which refills only when it is empty; "
            "use --schedule streaming or fifo"
        )
    if options.batch_size is not None and options.batch_tokens is not None:
        raise click.UsageError("give either --batch-size (lines) or --batch-tokens, not both")
    given = {
        "n": options.batch_size,
        "tokens": options.batch_tokens,
        "epsilon": options.epsilon,
        "row_budget": options.row_budget,
        "max_wait": options.max_wait,
    }
    try:
        return kinds[options.schedule](**{k: v for k, v in given.items() if v is not None})
    except (TypeError, ValueError) as error:
        raise click.UsageError(with_flags(error)) from error


def take(kind: type, values: dict):
    """Move the fields of a dataclass out of a dictionary of options."""
    return kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
