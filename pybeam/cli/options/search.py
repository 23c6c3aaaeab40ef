"""Options for the search: which algorithm or system, how it prunes, ranks, varies and guesses ahead."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

import click

from pybeam.cli.options.declare import (
    Count,
    FilePath,
    Parsed,
    Positive,
    Whole,
    option,
    section,
)
from pybeam.cli.options.recipes import Recipe

DEFAULT_ALGORITHM, DEFAULT_WIDTH, DEFAULT_DIVERSITY_PENALTY = "fixed", 5, 0.5
# the library has the same number, but it is slow to import
MAX_WIDTH = 4096

Algorithm = Literal[
    "greedy",
    "fixed",
    "variable",
    "shrinking",
    "optimal",
    "huang",
    "sample",
    "jacobi",
    "gauss-seidel-jacobi",
    "hybrid-jacobi",
    "adaptive-jacobi",
]
Unit = Literal["token", "word"]
StopRule = Literal["count", "top-finished", "optimal", "end"]
STOPS = get_args(StopRule)
# algorithms that take an option
PRUNED = ("variable", "shrinking")
FREE_TO_STOP = ("fixed", *PRUNED)
BEAMS = (*FREE_TO_STOP, "optimal", "huang")
IN_GROUPS = ("greedy", *BEAMS)
DRAWN = ("sample",)


def _widths(text: str) -> int | tuple[int, ...]:
    widths = tuple(map(int, text.split(",")))
    if not all(1 <= width <= MAX_WIDTH for width in widths):
        raise ValueError
    return widths if len(widths) > 1 else widths[0]


def _token_ids(text: str) -> tuple[int, ...]:
    ids = tuple(map(int, text.split(",")))
    if min(ids) < 0:
        raise ValueError
    return ids


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


Widths = Annotated[
    int | tuple[int, ...],
    Parsed(
        _widths,
        f"{{!r}} must be a number from 1 to {MAX_WIDTH}, or one for each of the first steps, such as "
        "128,256,512",
    ),
]
TokenIds = Annotated[
    tuple[int, ...],
    Parsed(_token_ids, "{!r} must be token ids joined by commas, such as 3 or 12,5"),
]
Assignment = Annotated[
    tuple[str, Any], Parsed(_assignment, "{!r} must be NAME=VALUE, such as early_stopping=true")
]
NumOutputs = Annotated[int, click.IntRange(1, MAX_WIDTH)]
Share = Annotated[float, click.FloatRange(0, 1)]
Block = Annotated[int, click.IntRange(1, 128)]


@dataclass(frozen=True)
class Search:
    """The algorithm, and when it stops.

    Attributes:
        algorithm: How to search, such as greedy, fixed or variable. greedy: fastest, one hypothesis. fixed:
            beam search as other toolkits do it. variable: a beam that --threshold keeps narrow where the
            model is sure; the choice for a wide beam. shrinking: a finished hypothesis leaves its place
            empty. optimal: like fixed, but stops a line when nothing can beat what has finished. huang: the
            same as its paper has it, where places of finished hypotheses stay empty for a step. sample:
            outputs drawn token by token. jacobi, gauss-seidel-jacobi, hybrid-jacobi, adaptive-jacobi:
            greedy's output, many tokens guessed and checked in one step.
        width: Hypotheses kept alive per source. 4 to 10 is usual with fixed, up to 50 with variable.
            128,256,512: 128 after the first token, 256 after the second, 512 from then on; for fixed,
            variable and optimal.
        n_best: Hypotheses to write per source, at most --width.
        min_length: Tokens to produce before a hypothesis may end.
        max_length: Tokens after which a hypothesis is cut; the end token counts.
        stop: When a line is done. count: as many hypotheses have finished as the beam is wide. top-finished:
            the best candidate of a step ends. optimal: nothing can beat what has finished. end: only at
            --max-length, or with an empty beam.
        patience: Stop when P times as many hypotheses have finished as the beam is wide, and keep the best of
            them.
        ended_only: Whether hypotheses that are cut at --max-length may be written.
    """

    algorithm: Algorithm | None = option("NAME", shows=DEFAULT_ALGORITHM, is_common=True)
    width: Widths | None = option(
        "K[,K...]", shows=str(DEFAULT_WIDTH), takers=BEAMS, is_common=True
    )
    n_best: NumOutputs | None = option("N", shows="1", is_common=True)
    min_length: Whole | None = option("TOKENS", shows="0")
    max_length: Count | None = option("TOKENS", shows="256, or the model's limit", is_common=True)
    stop: StopRule | None = option(
        "RULE", shows="count; optimal and huang have their own", takers=FREE_TO_STOP
    )
    patience: Positive | None = option("P", takers=FREE_TO_STOP)
    ended_only: bool | None = option(
        flag="--ended-only/--cut-too", shows="cut too; ended only for shrinking, optimal and huang"
    )


@dataclass(frozen=True)
class Pruning:
    """The thresholds of `pybeam.variable_beam` and `pybeam.shrinking_beam`.

    Attributes:
        threshold: Drop a hypothesis that scores this much below the best; 1.6 to 2.5 is usual, less is
            faster.
        max_candidates: At most M continuations of the same hypothesis; 3 to 5 is usual.
        relative_threshold: Drop a hypothesis less than RATIO times as probable as the best (0 to 1).
        local_threshold: Drop it if its last token is less than RATIO times as probable as the best last token
            (0 to 1).
        keep_ties: Whether a hypothesis exactly at a threshold stays.
    """

    threshold: float | None = option("NATS", takers=PRUNED)
    max_candidates: Count | None = option("M", takers=PRUNED)
    relative_threshold: float | None = option("RATIO", takers=PRUNED)
    local_threshold: float | None = option("RATIO", takers=PRUNED)
    keep_ties: bool | None = option(flag="--keep-ties/--drop-ties", shows="drop", takers=PRUNED)


@dataclass(frozen=True)
class Ranking:
    """The scores by which finished hypotheses are ranked.

    Attributes:
        length_penalty: Divide the sum of log-probabilities by length^A: 0 is the plain sum, which prefers
            short outputs.
        scoring: Another rule in place of --length-penalty. raw: the sum of log-probabilities. power:A: as
            --length-penalty A. gnmt:A: divided by ((5 + length) / 6)^A. reward:R or reward:R:RATIO: plus R
            per token, up to RATIO times the source's length. power:A:C and gnmt:A:C add C times GNMT's
            coverage penalty.
    """

    length_penalty: float | None = option(
        "A", shows="length_penalty of generation_config.json, else 1", is_common=True
    )
    scoring: str | None = option("RULE")


@dataclass(frozen=True)
class Variety:
    """Samples, or groups of beams, whose outputs differ.

    Attributes:
        samples: Sample N different outputs instead of searching for the best (stochastic beam search); in
            place of --algorithm, --width and --n-best. With --algorithm sample: draw N outputs, which may be
            equal.
        seed: Which samples: the same seed gives the same ones.
        top_k: Draw only from the K most probable tokens; 0 is all.
        top_p: Draw only from the most probable tokens that have P of the probability together.
        min_p: Draw only tokens that are at least P times as probable as the most probable one.
        groups: Search with G beams, each of which avoids what the ones before it chose; --width and --n-best
            are those of each beam.
        diversity_penalty: Cost of a token in a group, for every hypothesis of an earlier group that chose it.
    """

    samples: NumOutputs | None = option("N")
    seed: Whole | None = option("N", shows="0")
    top_k: Whole | None = option("K", takers=DRAWN)
    top_p: Share | None = option("P", takers=DRAWN)
    min_p: Share | None = option("P", takers=DRAWN)
    groups: Annotated[int, click.IntRange(2)] | None = option("G", takers=IN_GROUPS)
    diversity_penalty: Positive | None = option(
        "NATS", shows=str(DEFAULT_DIVERSITY_PENALTY), takers=IN_GROUPS
    )


@dataclass(frozen=True)
class SystemSearch:
    """The search of another system, in place of the algorithm.

    Attributes:
        recipe: Search as this system does, token for token, in place of --algorithm: ctranslate2, fairseq,
            fireredasr, huggingface, opennmt. Options that are left out have its defaults.
        recipe_options: An option of that system by its own name, such as early_stopping=never; may be given
            many times.
    """

    recipe: Recipe | None = option("NAME")
    recipe_options: tuple[Assignment, ...] = option("NAME=VALUE", (), flag="--recipe-option")


@dataclass(frozen=True)
class Ahead:
    """The tokens that the parallel searches guess.

    Attributes:
        block: Tokens that gauss-seidel-jacobi and hybrid-jacobi decode together.
        horizon: Tokens after which hybrid-jacobi goes on one by one.
        max_window: Tokens that adaptive-jacobi checks in one step at most.
    """

    block: Block | None = option(
        "TOKENS", shows="3", takers=("gauss-seidel-jacobi", "hybrid-jacobi")
    )
    horizon: Whole | None = option("TOKENS", shows="--max-length", takers=("hybrid-jacobi",))
    max_window: Block | None = option("TOKENS", shows="8", takers=("adaptive-jacobi",))


@dataclass(frozen=True)
class Processing:
    """The processors, which change the model's numbers before the search sees them.

    Attributes:
        temperature: Divide logits by T: above 1 smoother, below 1 sharper.
        eos_penalty: Multiply the log-probability of the end token by P: below 1 hypotheses end earlier.
        repetition_penalty: Make tokens that a hypothesis already has less probable, with P above 1; 1.1 to
            1.5 is usual.
        no_repeat_ngram: No N tokens in a row twice in a hypothesis; 3 or 4 is usual.
        suppress: Never write this token, or these tokens in a row; may be given many times.
        no_unk: Never write the token for unknown words.
        shortlist: Write likely translations of the source's tokens alone. A CPU takes less time for them
            if the folder has no bad_words_ids, no forced_eos_token_id and no other rules; see --without. A
            lexical table, such as Marian's lex.s2t or lex.s2t.gz, or CTranslate2's vmap.txt, counts with the
            100 most likely translations of each token; the first 100 tokens of the vocabulary always count.
        json_schema: Write nothing but JSON of the JSON schema in this file; needs the extra `grammars`. An
            output that would be cut at --max-length is not written.
        grammar: Write nothing but texts of the grammar in this file, in llguidance's dialect of Lark; needs
            the extra `grammars`. A text that would be cut at --max-length is not written.
        regex: Write nothing but texts that this pattern matches whole, as Python's re.fullmatch does.
        language_model: Add the scores of this n-gram model, in ARPA's form (.gz too) or in KenLM's binary
            form; its words are tokens, by their names in the model's files, or words of the text.
        language_model_weight: Multiply the scores of the language model by W; 0.1 to 0.5 is usual.
        language_model_unit: The words of the language model are tokens, or words of the text.
        without: Leave out this setting of the model's generation_config.json, such as bad_words_ids or
            min_length; may be given many times.
    """

    temperature: Positive | None = option("T")
    eos_penalty: Positive | None = option("P")
    repetition_penalty: Positive | None = option("P")
    no_repeat_ngram: Count | None = option("N")
    suppress: tuple[TokenIds, ...] = option("ID[,ID...]", ())
    no_unk: bool = False
    shortlist: FilePath | None = option("FILE")
    json_schema: FilePath | None = option("FILE")
    grammar: FilePath | None = option("FILE")
    regex: str | None = option("PATTERN")
    language_model: FilePath | None = option("FILE")
    language_model_weight: Positive | None = option("W", shows="0.3")
    language_model_unit: Unit | None = option(shows="token")
    without: tuple[str, ...] = option("SETTING", ())


KINDS = (Search, Pruning, Ranking, Variety, SystemSearch, Ahead, Processing)
SEARCH = section("Search", Search)
PRUNING = section("Pruning, with --algorithm variable or shrinking", Pruning)
SCORING = section("Scores, by which finished hypotheses are ranked", Ranking)
RECIPE = section("Recipes, the searches of other systems", SystemSearch)
PROCESSORS = section("Processors, which change what the model says", Processing)
VARIETY = section("Outputs that differ", Variety)
AHEAD = section("Tokens guessed ahead, with the --algorithm jacobi and its kin", Ahead)
SECTIONS = [SEARCH, PRUNING, SCORING, VARIETY, RECIPE, AHEAD, PROCESSORS]
# the algorithms that take an option that not all take
TAKERS: dict[str, tuple[str, ...]] = {
    one.name: one.metadata["takers"]
    for kind in KINDS
    for one in fields(kind)
    if "takers" in one.metadata
}
TAKEN = {
    kind: tuple(name for name, takers in TAKERS.items() if kind in takers)
    for kind in get_args(Algorithm)
}
