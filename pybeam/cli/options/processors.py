"""Options for processors, which change the model's numbers before the search sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import as_usage_errors, flag
from pybeam.cli.options.sections import Section, given, option

if TYPE_CHECKING:
    from pybeam.processors import Processor

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


class TokenIds(click.ParamType):
    """Token ids joined by commas."""

    name = "ids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
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


POSITIVE = click.FloatRange(0, min_open=True)

PROCESSORS = Section(
    "Processors, which change what the model says",
    [
        option(
            "--temperature",
            type=POSITIVE,
            metavar="T",
            help="Divide logits by T: above 1 smoother, below 1 sharper.",
        ),
        option(
            "--eos-penalty",
            type=POSITIVE,
            metavar="P",
            help="Multiply the log-probability of the end token by P: below 1 hypotheses end earlier.",
        ),
        option(
            "--repetition-penalty",
            type=POSITIVE,
            metavar="P",
            help="Make tokens that a hypothesis already has less probable, with P above 1; 1.1 to 1.5 is "
            "usual.",
        ),
        option(
            "--no-repeat-ngram",
            type=click.IntRange(1),
            metavar="N",
            help="No N tokens in a row twice in a hypothesis; 3 or 4 is usual.",
        ),
        option(
            "--suppress",
            type=TokenIds(),
            multiple=True,
            metavar="ID[,ID...]",
            help="Never write this token, or these tokens in a row; may be given many times.",
        ),
        option("--no-unk", is_flag=True, help="Never write the token for unknown words."),
        option(
            "--without",
            multiple=True,
            metavar="SETTING",
            help="Leave out this setting of the model's generation_config.json, such as bad_words_ids or "
            "min_length; may be given many times.",
        ),
    ],
)


@dataclass(frozen=True)
class ProcessorOptions:
    """The options for processors; None: not given."""

    temperature: float | None
    eos_penalty: float | None
    repetition_penalty: float | None
    no_repeat_ngram: int | None
    suppress: tuple[tuple[int, ...], ...]
    no_unk: bool
    without: tuple[str, ...]

    def build(self, unk_id: int | None) -> list[Processor]:
        """Build the processors that the options ask for. Raises UsageError for an invalid value."""
        from pybeam import processors

        chain: list[Processor] = []
        values = given(self, PROCESSOR_OF)
        if self.no_unk:
            values["no_unk"] = unk_id
        for name, value in values.items():
            with as_usage_errors(flag(name)):
                chain.append(getattr(processors, PROCESSOR_OF[name])(value))
        return chain
