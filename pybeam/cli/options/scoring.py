"""Options that rank finished hypotheses: `--length-penalty` and `--scoring`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pybeam.cli.options.errors import as_usage_errors
from pybeam.cli.options.sections import Section, option

if TYPE_CHECKING:
    from pybeam.scoring import Scoring

# the least and the largest number of arguments of each rule
RULES = {"raw": (0, 0), "power": (1, 2), "gnmt": (1, 2), "reward": (1, 2)}
DEFAULT_LENGTH_PENALTY = 1.0

SCORING = Section(
    "Scores, by which finished hypotheses are ranked",
    [
        option(
            "--length-penalty",
            type=float,
            metavar="A",
            show_default="length_penalty of generation_config.json, else 1",
            help="Divide the sum of log-probabilities by length^A: 0 is the plain sum, which prefers "
            "short outputs.",
        ),
        option(
            "--scoring",
            metavar="RULE",
            help="Another rule in place of --length-penalty. raw: the sum of log-probabilities. power:A: "
            "as --length-penalty A. gnmt:A: divided by ((5 + length) / 6)^A. reward:R or reward:R:RATIO: "
            "plus R per token, up to RATIO times the source's length. power:A:C and gnmt:A:C add C times "
            "GNMT's coverage penalty.",
        ),
    ],
)


@dataclass(frozen=True)
class ScoringOptions:
    """The options for scores; None: not given."""

    length_penalty: float | None
    scoring: str | None

    def check(self) -> None:
        """Raise UsageError if both options are given."""
        if self.length_penalty is not None and self.scoring is not None:
            raise click.UsageError("give either --length-penalty or --scoring, not both")

    def build(self, default: Scoring) -> Scoring:
        """Build the scoring that the options ask for. Raises UsageError if it does not exist."""
        from pybeam import scoring

        if self.length_penalty is not None:
            with as_usage_errors("--length-penalty"):
                return scoring.power(self.length_penalty)
        return default if self.scoring is None else parse_scoring(self.scoring)


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
    builders: dict[str, Callable[..., Scoring]] = {
        "raw": scoring.raw,
        "power": scoring.power,
        "gnmt": scoring.gnmt,
        "reward": scoring.reward,
    }
    with as_usage_errors(f"--scoring {text}"):
        return builders[name](*map(float, numbers))
