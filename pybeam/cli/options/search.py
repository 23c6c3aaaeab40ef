"""Options that choose the search: the algorithms of pybeam and their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import as_usage_errors, flag
from pybeam.cli.options.sections import Section, given, option

if TYPE_CHECKING:
    from pybeam.processors import Processor
    from pybeam.scoring import Scoring
    from pybeam.search.algorithms import Algorithm
    from pybeam.stopping import Stop

DEFAULT_ALGORITHM, DEFAULT_WIDTH, DEFAULT_DIVERSITY_PENALTY = "fixed", 5, 0.5
# the library has the same number, but it is slow to import
MAX_WIDTH = 4096
THRESHOLDS = (
    *("threshold", "max_candidates", "relative_threshold", "local_threshold"),
    "keep_ties",
)
STOPPING = ("stop", "patience")
GROUPS = ("groups", "diversity_penalty")
# arguments of each algorithm, without lengths, scores and processors, which all take
TAKEN = {
    "greedy": GROUPS,
    "fixed": ("width", *STOPPING, *GROUPS),
    "variable": ("width", *THRESHOLDS, *STOPPING, *GROUPS),
    "shrinking": ("width", *THRESHOLDS, *STOPPING, *GROUPS),
    "optimal": ("width", *GROUPS),
    "huang": ("width", *GROUPS),
    "jacobi": (),
    "gauss-seidel-jacobi": ("block",),
    "hybrid-jacobi": ("block", "horizon"),
    "adaptive-jacobi": ("max_window",),
}
STOPS = ("count", "top-finished", "optimal", "end")


class Widths(click.ParamType):
    """One width, or widths of the first steps between commas."""

    name = "widths"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | tuple[int, ...]:
        if not isinstance(value, str):
            return value  # it has been converted
        parts = [part.strip() for part in value.split(",")]
        widths = tuple(int(part) for part in parts if part.isdecimal())
        if len(widths) < len(parts) or not all(1 <= width <= MAX_WIDTH for width in widths):
            self.fail(
                f"{value!r} must be a number from 1 to {MAX_WIDTH}, or one for each of the first steps, "
                "such as 128,256,512",
                param,
                ctx,
            )
        return widths if len(widths) > 1 else widths[0]


SEARCH = Section(
    "Search",
    [
        option(
            "--algorithm",
            type=click.Choice(list(TAKEN)),
            metavar="NAME",
            show_default=DEFAULT_ALGORITHM,
            help="greedy: fastest, one hypothesis. fixed: beam search as other toolkits do it. variable: a "
            "beam that --threshold keeps narrow where the model is sure; the choice for a wide beam. "
            "shrinking: a finished hypothesis leaves its place empty. optimal: like fixed, but stops a "
            "line when nothing can beat what has finished. huang: the same as its paper has it, where "
            "places of finished hypotheses stay empty for a step. jacobi, gauss-seidel-jacobi, "
            "hybrid-jacobi, adaptive-jacobi: greedy's output, many tokens guessed and checked in one step.",
        ),
        option(
            "--width",
            type=Widths(),
            metavar="K[,K...]",
            show_default=str(DEFAULT_WIDTH),
            help="Hypotheses kept alive per source. 4 to 10 is usual with fixed, up to 50 with variable. "
            "128,256,512: 128 after the first token, 256 after the second, 512 from then on; for fixed, "
            "variable and optimal.",
        ),
        option(
            "--n-best",
            type=click.IntRange(1, MAX_WIDTH),
            metavar="N",
            show_default="1",
            help="Hypotheses to write per source, at most --width.",
        ),
        option(
            "--min-length",
            type=click.IntRange(0),
            metavar="TOKENS",
            show_default="0",
            help="Tokens to produce before a hypothesis may end.",
        ),
        option(
            "--max-length",
            type=click.IntRange(1),
            metavar="TOKENS",
            show_default="256, or the model's limit",
            help="Tokens after which a hypothesis is cut; the end token counts.",
        ),
        option(
            "--stop",
            type=click.Choice(STOPS),
            metavar="RULE",
            show_default="count; optimal and huang have their own",
            help="When a line is done. count: as many hypotheses have finished as the beam is wide. "
            "top-finished: the best candidate of a step ends. optimal: nothing can beat what has "
            "finished. end: only at --max-length, or with an empty beam.",
        ),
        option(
            "--patience",
            type=click.FloatRange(0, min_open=True),
            metavar="P",
            help="Stop when P times as many hypotheses have finished as the beam is wide, and keep the "
            "best of them.",
        ),
        option(
            "--ended-only/--cut-too",
            default=None,
            show_default="cut too; ended only for shrinking, optimal and huang",
            help="Whether hypotheses that are cut at --max-length may be written.",
        ),
    ],
)
PRUNING = Section(
    "Pruning, with --algorithm variable or shrinking",
    [
        option(
            "--threshold",
            type=float,
            metavar="NATS",
            help="Drop a hypothesis that scores this much below the best; 1.6 to 2.5 is usual, less is "
            "faster.",
        ),
        option(
            "--max-candidates",
            type=click.IntRange(1),
            metavar="M",
            help="At most M continuations of the same hypothesis; 3 to 5 is usual.",
        ),
        option(
            "--relative-threshold",
            type=float,
            metavar="RATIO",
            help="Drop a hypothesis less than RATIO times as probable as the best (0 to 1).",
        ),
        option(
            "--local-threshold",
            type=float,
            metavar="RATIO",
            help="Drop it if its last token is less than RATIO times as probable as the best last "
            "token (0 to 1).",
        ),
        option(
            "--keep-ties/--drop-ties",
            default=None,
            show_default="drop",
            help="Whether a hypothesis exactly at a threshold stays.",
        ),
    ],
)
VARIETY = Section(
    "Outputs that differ",
    [
        option(
            "--samples",
            type=click.IntRange(1, MAX_WIDTH),
            metavar="N",
            help="Sample N different outputs instead of searching for the best (stochastic beam search); "
            "in place of --algorithm, --width and --n-best.",
        ),
        option(
            "--seed",
            type=click.IntRange(0),
            metavar="N",
            show_default="0",
            help="Which samples: the same seed gives the same ones.",
        ),
        option(
            "--groups",
            type=click.IntRange(2),
            metavar="G",
            help="Search with G beams, each of which avoids what the ones before it chose; --width and "
            "--n-best are those of each beam.",
        ),
        option(
            "--diversity-penalty",
            type=click.FloatRange(0, min_open=True),
            metavar="NATS",
            show_default=str(DEFAULT_DIVERSITY_PENALTY),
            help="Cost of a token in a group, for every hypothesis of an earlier group that chose it.",
        ),
    ],
)
AHEAD = Section(
    "Tokens guessed ahead, with the --algorithm jacobi and its kin",
    [
        option(
            "--block",
            type=click.IntRange(1, 128),
            metavar="TOKENS",
            show_default="3",
            help="Tokens that gauss-seidel-jacobi and hybrid-jacobi decode together.",
        ),
        option(
            "--horizon",
            type=click.IntRange(0),
            metavar="TOKENS",
            show_default="--max-length",
            help="Tokens after which hybrid-jacobi goes on one by one.",
        ),
        option(
            "--max-window",
            type=click.IntRange(1, 128),
            metavar="TOKENS",
            show_default="8",
            help="Tokens that adaptive-jacobi checks in one step at most.",
        ),
    ],
)


@dataclass(frozen=True)
class SearchOptions:
    """The options for the search; None: not given."""

    algorithm: str | None = None
    width: int | tuple[int, ...] | None = None
    n_best: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    stop: str | None = None
    patience: float | None = None
    threshold: float | None = None
    max_candidates: int | None = None
    relative_threshold: float | None = None
    local_threshold: float | None = None
    keep_ties: bool | None = None
    ended_only: bool | None = None
    samples: int | None = None
    seed: int | None = None
    groups: int | None = None
    diversity_penalty: float | None = None
    block: int | None = None
    horizon: int | None = None
    max_window: int | None = None

    @property
    def kind(self) -> str:
        """The algorithm's name."""
        return self.algorithm or DEFAULT_ALGORITHM

    @property
    def has_one_hypothesis(self) -> bool:
        return self.samples is None and "width" not in TAKEN[self.kind]

    @property
    def certifies(self) -> bool:
        """Whether a bound ends the search, which happens early only for raw sums."""
        return "optimal" in (self.stop, self.kind) or self.kind == "huang"

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.samples is not None:
            others = ("algorithm", "width", "n_best", *THRESHOLDS, *STOPPING, *GROUPS)
            self._reject((*others, "block", "horizon", "max_window"), "--samples", "leave it out")
            return
        self._reject(("seed",), f"--algorithm {self.kind}", "it goes with --samples")
        for name in {name for names in TAKEN.values() for name in names} - {*TAKEN[self.kind]}:
            takers = [kind for kind, names in TAKEN.items() if name in names]
            self._reject((name,), f"--algorithm {self.kind}", f"it goes with {' or '.join(takers)}")
        if self.stop is not None and self.patience is not None:
            raise click.UsageError("give either --stop or --patience, not both")
        if self.diversity_penalty is not None and self.groups is None:
            raise click.UsageError("--diversity-penalty needs --groups G")
        width = 1 if self.has_one_hypothesis else self.width or DEFAULT_WIDTH
        width = width[-1] if isinstance(width, tuple) else width
        if self.n_best is not None and self.n_best > width:
            if self.has_one_hypothesis:
                raise click.UsageError(
                    f"--n-best {self.n_best} needs more than the one hypothesis of --algorithm {self.kind}; "
                    "use --algorithm fixed or variable with --width"
                )
            raise click.UsageError(
                f"--n-best {self.n_best} is more than --width {width} can finish; use --width "
                f"{self.n_best} or fewer hypotheses"
            )

    def _reject(self, names: tuple[str, ...], setting: str, remedy: str) -> None:
        for name in given(self, names):
            raise click.UsageError(f"{flag(name)} has no meaning with {setting}; {remedy}")

    def build(self, scoring: Scoring, processors: list[Processor]) -> Algorithm:
        """Build the algorithm that the options describe. Raises UsageError for a value that it refuses."""
        import pybeam

        common: dict[str, Any] = dict(processors=processors)
        common |= given(self, ("n_best", "min_length", "max_length"))
        if self.ended_only is not None:
            common["ended_only"] = self.ended_only
        with as_usage_errors():
            if self.samples is not None:
                return pybeam.stochastic_beam(self.samples, self.seed or 0, **common)
            common["scoring"] = scoring
            if self.stop is not None or self.patience is not None:
                common["stop"] = self._stop()
            return self.in_groups(self._algorithm(common))

    def in_groups(self, algorithm: Algorithm) -> Algorithm:
        """Search with groups of this algorithm, if the options ask for groups."""
        import pybeam

        if self.groups is None:
            return algorithm
        with as_usage_errors():
            penalty = self.diversity_penalty or DEFAULT_DIVERSITY_PENALTY
            return pybeam.diverse(algorithm, self.groups, penalty)

    def _algorithm(self, common: dict[str, Any]) -> Algorithm:
        import pybeam

        # a search that has one width refuses widths by step
        width: Any = self.width or DEFAULT_WIDTH
        thresholds = given(self, THRESHOLDS)
        match self.kind:
            case "greedy":
                return pybeam.greedy(**common)
            case "fixed":
                return pybeam.fixed_beam(width, **common)
            case "variable":
                return pybeam.variable_beam(width, **thresholds, **common)
            case "shrinking":
                return pybeam.shrinking_beam(width, **thresholds, **common)
            case "optimal":
                return pybeam.optimal_beam(width, **common)
            case "huang":
                return pybeam.huang_beam(width, **common)
            case "jacobi":
                return pybeam.jacobi(**common)
            case "gauss-seidel-jacobi":
                return pybeam.gauss_seidel_jacobi(**given(self, ("block",)), **common)
            case "hybrid-jacobi":
                return pybeam.hybrid_jacobi(**given(self, ("block", "horizon")), **common)
            case _:
                window = () if self.max_window is None else (self.max_window,)
                return pybeam.adaptive_jacobi(*window, **common)

    def _stop(self) -> Stop:
        from pybeam import stopping

        if self.stop is None:
            return stopping.Stop(patience=self.patience)
        builders = {
            "count": stopping.count,
            "top-finished": stopping.top_finished,
            "optimal": stopping.optimal,
            "end": stopping.end,
        }
        return builders[self.stop]()
