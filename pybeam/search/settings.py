"""Put what a model's folder says of every output into a search."""

from __future__ import annotations

import dataclasses
from typing import Any

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.models.base import Model
from pybeam.models.settings import Settings
from pybeam.processors import base
from pybeam.processors.bans import (
    NoRepeatNgram,
    SuppressSequences,
    SuppressTokens,
    SuppressTokensAtStart,
)
from pybeam.processors.base import AnyProcessor, Processor, Stage, stage_of
from pybeam.processors.ends import EosGrowth, LastToken
from pybeam.processors.penalties import RepetitionPenalty
from pybeam.search.algorithms import Algorithm


class FolderSequences(SuppressSequences):
    """The sequences that a folder bans. A class of its own, so that requests change the algorithm's alone."""


class FolderTokens(SuppressTokens):
    """The tokens that a folder bans."""


class FolderTokensAtStart(SuppressTokensAtStart):
    """The tokens that a folder bans first."""


# the class of an algorithm's own processor that does the same
BANS = {
    FolderSequences: SuppressSequences,
    FolderTokens: SuppressTokens,
    FolderTokensAtStart: SuppressTokensAtStart,
}


def applied(algorithm: Algorithm, model: Model) -> Algorithm:
    """Return the algorithm with the settings of the model's folder, as `generate` of transformers has them.

    They act on log-probabilities, so that tokens which they do not touch keep theirs. Only samples need
    probabilities that sum to 1. In greedy search the repetition penalty acts on logits.

    Raises:
        ValueError: the folder has settings that are not known, or that do not fit the algorithm.
    """
    _refuse(model.settings, model)
    settings = _within(model.settings, model.vocab_size)
    stage: Stage = "logits" if algorithm.perturbs else "log_probs"
    chain = [
        *_penalties(
            settings, algorithm.processors, "logits" if algorithm.max_width == 1 else stage
        ),
        *_bans(settings, algorithm.processors, stage),
        *_ends(settings, algorithm.processors),
    ]
    changes: dict[str, Any] = {}
    if chain:
        whole = [*chain, *algorithm.processors]
        # stable, so that the order within a stage stays
        whole.sort(key=lambda processor: stage_of(processor) == "log_probs")
        changes["processors"] = tuple(whole)
    if settings.min_length and not algorithm.min_length:
        most = algorithm.max_length
        if isinstance(most, int) and most <= settings.min_length:
            raise ArgumentError(
                "max_length",
                f"must be more than {settings.min_length}, the `min_length` of {settings.path}, but is "
                f"{most}; raise it, or load the model and take `model.without('min_length')`",
            )
        changes["min_length"] = settings.min_length
    return dataclasses.replace(algorithm, **changes)


def plain(processor: AnyProcessor) -> AnyProcessor:
    """Return a processor of a folder as one of an algorithm, and others as they are."""
    own = BANS.get(type(processor))  # type: ignore[arg-type]
    if own is None or not isinstance(processor, Processor):
        return processor
    assert dataclasses.is_dataclass(processor)
    values = {one.name: getattr(processor, one.name) for one in dataclasses.fields(processor)}
    return own(**values)


def _within(settings: Settings, vocab_size: int) -> Settings:
    """Return the settings without banned tokens that the vocabulary lacks, and nobody generates."""
    found = [line for line in settings.bad_words_ids if max(line, default=0) < vocab_size]
    names = ("suppress_tokens", "begin_suppress_tokens")
    kept: dict[str, Any] = {
        name: tuple(token for token in getattr(settings, name) if token < vocab_size)
        for name in names
    }
    return dataclasses.replace(settings, bad_words_ids=tuple(found), **kept)


def _refuse(settings: Settings, model: Model) -> None:
    """Raise ValueError for settings that cannot be honoured."""
    for name in settings.unknown:
        raise ValueError(
            f"`{name}` in {settings.path} is not understood, and outputs would be others without it; search "
            f"without it: `model.without({name!r})`"
        )
    forced = settings.forced_eos_token_id
    if forced and set(forced) != set(model.eos_ids):
        raise ValueError(
            f"`forced_eos_token_id` in {settings.path} must be EOS, {list(model.eos_ids)}, but is "
            f"{list(forced)}; search without it: `model.without('forced_eos_token_id')`"
        )


def _penalties(
    settings: Settings, own: tuple[AnyProcessor, ...], stage: Stage
) -> list[AnyProcessor]:
    chain: list[AnyProcessor] = []
    kinds = set(map(type, own))
    if settings.repetition_penalty != 1 and RepetitionPenalty not in kinds:
        penalty = settings.repetition_penalty
        chain.append(processors.repetition_penalty(penalty, counts_start=True, stage=stage))
    return chain


def _bans(settings: Settings, own: tuple[AnyProcessor, ...], stage: Stage) -> list[AnyProcessor]:
    if any(type(one) in BANS for one in own):
        return []  # it is a decoder's algorithm, which has them already
    chain: list[AnyProcessor] = []
    if settings.no_repeat_ngram_size and NoRepeatNgram not in set(map(type, own)):
        size = settings.no_repeat_ngram_size
        chain.append(processors.no_repeat_ngram(size, counts_start=True, stage=stage))
    if settings.bad_words_ids:
        chain.append(FolderSequences(settings.bad_words_ids, True, True, stage))
    if settings.suppress_tokens and not _bans_all(own, SuppressTokens, settings.suppress_tokens):
        chain.append(FolderTokens(settings.suppress_tokens, stage))
    at_start = settings.begin_suppress_tokens
    if at_start and not _bans_all(own, SuppressTokensAtStart, at_start):
        # behind the token that the algorithm forces
        chain.append(FolderTokensAtStart(at_start, stage, int(base.forces_first(own))))
    return chain


def _bans_all(own: tuple[AnyProcessor, ...], kind: type, tokens: tuple[int, ...]) -> bool:
    """Whether an algorithm bans these tokens itself, so that there is nothing to add."""
    return any(
        type(one) is kind and isinstance(one, SuppressTokens) and set(tokens) <= set(one.tokens)
        for one in own
    )


def _ends(settings: Settings, own: tuple[AnyProcessor, ...]) -> list[AnyProcessor]:
    kinds = set(map(type, own))
    chain: list[AnyProcessor] = []
    if settings.forced_eos_token_id and LastToken not in kinds:
        chain.append(processors.force_eos(is_scored=False))
    growth = settings.exponential_decay_length_penalty
    if growth is not None and EosGrowth not in kinds:
        chain.append(processors.eos_growth(*growth))
    return chain
