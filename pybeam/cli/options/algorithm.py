"""Build the algorithm of a command: pybeam's search or another system's, with scores and processors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options import search
from pybeam.cli.options.declare import given, refuse
from pybeam.cli.options.errors import as_failures, as_usage_errors, flag
from pybeam.cli.options.recipes import ARGUMENTS, Recipe, build_recipe
from pybeam.cli.options.search import DEFAULT_DIVERSITY_PENALTY, DEFAULT_WIDTH, TAKEN, TAKERS

if TYPE_CHECKING:
    from pybeam.processors import Processor
    from pybeam.scoring import Scoring
    from pybeam.search.algorithms import Algorithm
    from pybeam.stopping import Stop
    from pybeam.text.tokenizer import Tokenizer

AHEAD = tuple(one.name for one in fields(search.Ahead))
GROUPS = ("groups", "diversity_penalty")
THRESHOLDS = tuple(one.name for one in fields(search.Pruning))
# the options of pybeam's searches, without the processors
SEARCH_NAMES = tuple(
    one.name
    for kind in (search.Search, search.Pruning, search.Variety, search.Ahead, search.Ranking)
    for one in fields(kind)
)
# options and their processors, in the order in which these are applied
PROCESSOR_OF = {
    "no_unk": "no_unk",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram": "no_repeat_ngram",
    "suppress": "suppress_sequences",
    # the only one that changes log-probabilities; the others change logits
    "eos_penalty": "eos_penalty",
}
# options whose processors have the same names, and take a tokenizer
CONSTRAINTS = ("json_schema", "grammar", "regex")
OF_LANGUAGE_MODEL = ("language_model_weight", "language_model_unit")
# the least and the largest number of arguments of each rule
RULES = {"raw": (0, 0), "power": (1, 2), "gnmt": (1, 2), "reward": (1, 2)}
DEFAULT_LENGTH_PENALTY = 1.0


@dataclass(frozen=True)
class AlgorithmOptions(
    search.Search,
    search.Pruning,
    search.Ranking,
    search.Variety,
    search.SystemSearch,
    search.Ahead,
    search.Processing,
):
    """The options for the algorithm; None: not given. Raises UsageError if they contradict each other."""

    def __post_init__(self) -> None:
        if self.length_penalty is not None and self.scoring is not None:
            raise click.UsageError("give either --length-penalty or --scoring, not both")
        if self.recipe is not None:
            self._check_recipe(self.recipe)
        elif self.recipe_options:
            raise click.UsageError("--recipe-option needs --recipe")
        elif self.samples is not None and not self.draws:
            refuse(
                self,
                ("algorithm", "n_best", *TAKERS),
                "has no meaning with --samples; leave it out",
            )
            refuse(
                self,
                ("length_penalty", "scoring"),
                "has no meaning with --samples, which are drawn by their probability; leave it out",
            )
        else:
            self._check_search()
        if self.diversity_penalty is not None and self.groups is None:
            raise click.UsageError("--diversity-penalty needs --groups G")
        if self.language_model is None:
            refuse(self, OF_LANGUAGE_MODEL, "needs --language-model FILE")

    def _check_recipe(self, recipe: Recipe) -> None:
        taken = ARGUMENTS[recipe]
        refuse(
            self,
            [name for name in self._for_recipes() if name not in taken],
            f"has no meaning with --recipe {recipe}, which takes {', '.join(map(flag, taken))}, and its own "
            "options through --recipe-option",
        )
        if isinstance(self.width, tuple):
            raise click.UsageError(
                f"--width must be one number with --recipe {recipe}, which has no widths by step"
            )

    def _check_search(self) -> None:
        kind = f"--algorithm {self.kind}"
        if self.draws:
            refuse(self, ("n_best",), f"has no meaning with {kind}; --samples says how many")
            reason = f"has no meaning with {kind}, which draws by probability; leave it out"
            refuse(self, ("length_penalty", "scoring"), reason)
        else:
            refuse(self, ("seed",), f"has no meaning with {kind}; it goes with --samples")
        for name, takers in TAKERS.items():
            if self.kind not in takers:
                reason = f"has no meaning with {kind}; it goes with {' or '.join(takers)}"
                refuse(self, (name,), reason)
        if self.stop is not None and self.patience is not None:
            raise click.UsageError("give either --stop or --patience, not both")
        has_one = "width" not in TAKEN[self.kind]
        width = 1 if has_one else self.width or DEFAULT_WIDTH
        width = width[-1] if isinstance(width, tuple) else width
        if self.n_best is None or self.n_best <= width:
            return
        if has_one:
            raise click.UsageError(
                f"--n-best {self.n_best} needs more than the one hypothesis of {kind}; use --algorithm fixed "
                "or variable with --width"
            )
        raise click.UsageError(
            f"--n-best {self.n_best} is more than --width {width} can finish; use --width {self.n_best} or "
            "fewer hypotheses"
        )

    @property
    def kind(self) -> str:
        """The algorithm's name."""
        return self.algorithm or search.DEFAULT_ALGORITHM

    @property
    def draws(self) -> bool:
        """Whether outputs are drawn token by token."""
        return self.kind == "sample" and self.recipe is None

    def _for_recipes(self) -> dict[str, Any]:
        """Return all given options that a recipe may take."""
        names = [name for name in (*SEARCH_NAMES, *PROCESSOR_OF) if name not in GROUPS]
        return given(self, names)

    @property
    def needs_tokenizer(self) -> bool:
        """Whether an option is about texts of tokens."""
        return (
            self.no_unk
            or self.recipe is not None
            or bool(given(self, (*CONSTRAINTS, "language_model")))
        )

    def build_for(
        self, directory: str, tokenizer: Tokenizer | None, more: Sequence[Processor] = ()
    ) -> Algorithm:
        """Build the algorithm for the model in a directory, with the settings of its files; see `build`."""
        from pybeam.text.json_files import read_json

        unk_id = None if tokenizer is None else tokenizer.unk_id
        if self.no_unk and unk_id is None:
            raise click.UsageError(
                f"--no-unk needs a tokenizer that has <unk>, but that of {directory} has none; leave it out"
            )
        path = Path(directory, "generation_config.json")
        with as_failures():
            config = read_json(path) if path.exists() else {}
            more = (*self._constraints(tokenizer), *more)
            if self.shortlist is not None:
                more = (*more, self._allowed_translations(self.shortlist, directory))
        return self.build(config, unk_id, more)

    def _constraints(self, tokenizer: Tokenizer | None) -> list[Processor]:
        """Return the processors that hold outputs to a form, or weigh them."""
        from pybeam import processors

        found = []
        for name, value in given(self, CONSTRAINTS).items():
            if tokenizer is None:
                raise click.UsageError(f"{flag(name)} needs a model with a tokenizer")
            text = value if name == "regex" else Path(value).read_text("utf-8")
            with as_usage_errors(flag(name)):
                found.append(getattr(processors, name)(text, tokenizer))
        if self.language_model is not None:
            options = {
                name.removeprefix("language_model_"): value
                for name, value in given(self, OF_LANGUAGE_MODEL).items()
            }
            with as_usage_errors("--language-model"):
                path = self.language_model
                found.append(processors.language_model(path, tokenizer, **options))
        return found

    @staticmethod
    def _allowed_translations(path: str, directory: str) -> Processor:
        from pybeam.shortlist import Shortlist, allowed_translations

        return allowed_translations(Shortlist.load(path, directory))

    def build(
        self,
        generation_config: Mapping[str, Any],
        unk_id: int | None,
        more: Sequence[Processor] = (),
    ) -> Algorithm:
        """Build the algorithm, with the settings of the model's files and `more` processors behind its own.

        Raises UsageError for a value that it refuses.
        """
        import pybeam

        if self.recipe is not None:
            algorithm = build_recipe(
                self.recipe,
                self._for_recipes(),
                dict(self.recipe_options),
                generation_config,
                unk_id,
            )
            chain = (*algorithm.processors, *more)
            return self._in_groups(dataclasses.replace(algorithm, processors=chain))
        common = given(self, ("n_best", "min_length", "max_length"))
        common["processors"] = [*self._processors(unk_id), *more]
        if self.ended_only is not None:
            common["ended_only"] = self.ended_only
        scoring = self._scoring(generation_config.get("length_penalty"))
        with as_usage_errors():
            if self.draws:
                cuts = given(self, ("temperature", "seed", *TAKEN["sample"]))
                return pybeam.sample(self.samples or 1, **cuts, **common)
            if self.samples is not None:
                return pybeam.stochastic_beam(self.samples, self.seed or 0, **common)
            if self.stop is not None or self.patience is not None:
                common["stop"] = self._stop()
            return self._in_groups(self._algorithm(common | {"scoring": scoring}))

    def _algorithm(self, common: dict[str, Any]) -> Algorithm:
        import pybeam

        name = self.kind.replace("-", "_")
        if "width" not in TAKEN[self.kind]:
            return getattr(pybeam, name)(**given(self, AHEAD), **common)
        # a search that has one width refuses widths by step
        width: Any = self.width or DEFAULT_WIDTH
        return getattr(pybeam, f"{name}_beam")(width, **given(self, THRESHOLDS), **common)

    def _in_groups(self, algorithm: Algorithm) -> Algorithm:
        """Search with groups of this algorithm, if the options ask for groups."""
        import pybeam

        if self.groups is None:
            return algorithm
        with as_usage_errors():
            penalty = self.diversity_penalty or DEFAULT_DIVERSITY_PENALTY
            return pybeam.diverse(algorithm, self.groups, penalty)

    def _stop(self) -> Stop:
        from pybeam import stopping

        if self.stop is None:
            return stopping.Stop(patience=self.patience)
        stop: Stop = getattr(stopping, self.stop.replace("-", "_"))()
        return stop

    def _processors(self, unk_id: int | None) -> list[Processor]:
        from pybeam import processors

        chain: list[Processor] = []
        values = given(self, PROCESSOR_OF)
        if self.draws:
            values.pop("temperature", None)
        if self.no_unk:
            values["no_unk"] = unk_id
        for name, value in values.items():
            with as_usage_errors(flag(name)):
                chain.append(getattr(processors, PROCESSOR_OF[name])(value))
        return chain

    def _scoring(self, of_model: float | None) -> Scoring:
        """Return the scoring that the options ask for, or that of the model's files."""
        from pybeam import scoring

        if self.length_penalty is not None:
            with as_usage_errors("--length-penalty"):
                return scoring.power(self.length_penalty)
        if self.scoring is not None:
            return parse_scoring(self.scoring)
        # bounds on a normalised score are not tight before the length limit, so that they end no search
        if "optimal" in (self.stop, self.kind) or self.kind == "huang":
            return scoring.raw()
        return scoring.power(DEFAULT_LENGTH_PENALTY if of_model is None else of_model)


def parse_scoring(text: str) -> Scoring:
    """Parse a scoring such as `power:1` or `reward:0.5:1.2`. Raises UsageError if it does not exist."""
    from pybeam import scoring

    name, *numbers = text.split(":")
    least, most = RULES.get(name, (1, 0))
    if not least <= len(numbers) <= most:
        raise click.UsageError(
            "--scoring must be raw, power:A, power:A:C, gnmt:A, gnmt:A:C, reward:R or reward:R:RATIO with "
            f"numbers for the capital letters, such as power:1, but is {text!r}"
        )
    with as_usage_errors(f"--scoring {text}"):
        found: Scoring = getattr(scoring, name)(*map(float, numbers))
        return found
