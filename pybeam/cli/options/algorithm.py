"""Build the algorithm of a command: pybeam's search or another system's, with scores and processors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import as_failures, flag
from pybeam.cli.options.processors import PROCESSOR_OF, PROCESSORS, ProcessorOptions
from pybeam.cli.options.recipes import ARGUMENTS, RECIPE, build_recipe
from pybeam.cli.options.scoring import DEFAULT_LENGTH_PENALTY, SCORING, ScoringOptions
from pybeam.cli.options.search import AHEAD, GROUPS, PRUNING, SEARCH, VARIETY, SearchOptions
from pybeam.cli.options.sections import given, take

if TYPE_CHECKING:
    from pybeam.processors import Processor
    from pybeam.search.algorithms import Algorithm

SECTIONS = [SEARCH, PRUNING, SCORING, VARIETY, RECIPE, AHEAD, PROCESSORS]


@dataclass(frozen=True)
class AlgorithmOptions:
    """The options for the algorithm."""

    search: SearchOptions
    scoring: ScoringOptions
    processors: ProcessorOptions
    recipe: str | None = None
    recipe_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise UsageError for options that contradict each other."""
        self._check()

    @classmethod
    def take(cls, values: dict[str, Any]) -> AlgorithmOptions:
        """Take these options out of the `values` of a command line."""
        return cls(
            take(SearchOptions, values),
            take(ScoringOptions, values),
            take(ProcessorOptions, values),
            values.pop("recipe"),
            dict(values.pop("recipe_options")),
        )

    def _check(self) -> None:
        self.scoring.check()
        if self.recipe is None:
            if self.recipe_options:
                raise click.UsageError("--recipe-option needs --recipe")
            self.search.check()
            if self.search.samples is not None:
                for name in given(self.scoring, ("length_penalty", "scoring")):
                    raise click.UsageError(
                        f"{flag(name)} has no meaning with --samples, which are drawn by their probability; "
                        "leave it out"
                    )
            return
        if self.search.diversity_penalty is not None and self.search.groups is None:
            raise click.UsageError("--diversity-penalty needs --groups G")
        for name in self.given():
            if name not in ARGUMENTS[self.recipe]:
                raise click.UsageError(
                    f"{flag(name)} has no meaning with --recipe {self.recipe}, which takes "
                    f"{', '.join(map(flag, ARGUMENTS[self.recipe]))}, and its own options through "
                    "--recipe-option"
                )
        if isinstance(self.search.width, tuple):
            raise click.UsageError(
                f"--width must be one number with --recipe {self.recipe}, which has no widths by step"
            )

    def given(self) -> dict[str, Any]:
        """Return all given options by name, without those for groups."""
        names = [field.name for field in dataclasses.fields(self.search)]
        found = given(self.search, [name for name in names if name not in GROUPS])
        found |= given(self.scoring, ("length_penalty", "scoring"))
        return found | given(self.processors, PROCESSOR_OF)

    @property
    def needs_unk(self) -> bool:
        """Whether the id of the unknown word is needed."""
        return self.processors.no_unk

    def build_for(
        self, directory: str, unk_id: int | None, more: Sequence[Processor] = ()
    ) -> Algorithm:
        """Build the algorithm for the model in a directory, with the settings of its files; see `build`."""
        from pybeam.text.json_files import read_json

        if self.needs_unk and unk_id is None:
            raise click.UsageError(
                f"--no-unk needs a tokenizer that has <unk>, but that of {directory} has none; leave it out"
            )
        path = Path(directory, "generation_config.json")
        with as_failures():
            config = read_json(path) if path.exists() else {}
        return self.build(config, unk_id, more)

    def build(
        self,
        generation_config: Mapping[str, Any],
        unk_id: int | None,
        more: Sequence[Processor] = (),
    ) -> Algorithm:
        """Build the algorithm, with the settings of the model's files and `more` processors behind its own.

        Raises UsageError for a value that it refuses.
        """
        from pybeam import scoring

        if self.recipe is not None:
            algorithm = build_recipe(
                self.recipe, self.given(), self.recipe_options, generation_config, unk_id
            )
            chain = (*algorithm.processors, *more)
            return self.search.in_groups(dataclasses.replace(algorithm, processors=chain))
        alpha = generation_config.get("length_penalty")
        default = scoring.power(DEFAULT_LENGTH_PENALTY if alpha is None else alpha)
        if self.search.certifies:
            # bounds on a normalised score are not tight before the length limit
            default = scoring.raw()
        processors = [*self.processors.build(unk_id), *more]
        return self.search.build(self.scoring.build(default), processors)
