"""`language_model`: scores of an n-gram model, or of a function, beside those of the model that decodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from pybeam.arguments import number
from pybeam.automata.arpa import read_arpa
from pybeam.automata.automaton import NOWHERE
from pybeam.automata.kenlm import is_kenlm, read_kenlm
from pybeam.automata.ngrams import BEGIN, END, NO_WORD, UNKNOWN, NGrams
from pybeam.automata.vocabulary import Vocabulary
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage, check_stage
from pybeam.processors.constraints import Constraint
from pybeam.processors.functions import Function
from pybeam.processors.word_models import Endings, WordLanguageModel
from pybeam.text.tokenizer import Tokenizer

Unit = Literal["token", "word"]
# an id as a word of a model
ID = re.compile("0|[1-9][0-9]{0,6}")
# words of a model that no token is
MARKS = (BEGIN, END, UNKNOWN)


def language_model(
    model: str | os.PathLike[str] | NGrams | Callable[[Rows], Tensor],
    tokenizer: Any = None,
    *,
    weight: float = 0.3,
    unit: Unit = "token",
    stage: Stage = "log_probs",
) -> Processor:
    """Add the scores of a language model: ``x[v] + weight * log p(v | y)``, natural logarithms.

    This is shallow fusion (Gülçehre et al. 2015). y are the tokens behind the forced prefix, behind the
    sentence's beginning `<s>`. EOS has the probability of `</s>`. Back-off is exact: the sum over an output
    is `weight` times what KenLM gives the sentence. Tokens or words that the model lacks are its `<unk>`.

    With ``unit="word"`` the model is one of words, as texts are split at spaces. A token that ends a word
    adds the weight of the word, and EOS that of the last word and of the end. So hypotheses of one length
    may have scores of different numbers of words.

    Per request: the model with its tokenizer and its weight, of the same unit and stage. A function is the
    algorithm's.

    Args:
        model: the path of an n-gram model, in ARPA's text form (`.gz` too) or in KenLM's binary form; or
            n-grams (`pybeam.automata.ngrams.NGrams`); or a function of `rows` that returns log-probabilities
            [R, V], as `allowed_tokens` takes one.
        tokenizer: a `pybeam.Tokenizer`, or an object whose `vocab()` gives the text of each token. A model of
            tokens names them as the tokenizer's files do; None: it names them by their ids.
        weight: factor of log-probabilities.
        unit: what the model's words are, tokens or words of the text.
        stage: see `pybeam.processors`.

    Raises:
        TypeError: `model` or `tokenizer` is none of these.
        FileNotFoundError: there is no such file.
        ValueError: the file is not sound, or has no word that is a token.
    """
    number("weight", weight, -float("inf"))
    check_stage(stage)
    if unit not in get_args(Unit):
        raise ValueError(f"`unit` must be 'token' or 'word', but is {unit!r}")
    if callable(model) and not isinstance(model, NGrams):
        return Function(_Weighted(model, weight), stage)
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        read = read_kenlm(path) if is_kenlm(path) else read_arpa(path)
        try:
            return _of_ngrams(read, tokenizer, weight, unit, stage)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if not isinstance(model, NGrams):
        raise TypeError(
            f"`model` must be a path, n-grams or a function of `rows`, but is {type(model).__name__}"
        )
    return _of_ngrams(model, tokenizer, weight, unit, stage)


def _of_ngrams(
    model: NGrams, tokenizer: Any, weight: float, unit: Unit, stage: Stage
) -> TokenLanguageModel | WordLanguageModel:
    if unit == "word":
        endings = Endings(Vocabulary.of(tokenizer), model.words)
        words = np.arange(len(model.words), dtype=np.int32)
        return WordLanguageModel(model.automaton(words, weight), endings, stage)
    return TokenLanguageModel(model.automaton(_words_of_tokens(model, tokenizer), weight), stage)


@dataclass(frozen=True)
class _Weighted:
    """A function of others, times a factor."""

    function: Callable[[Rows], Tensor]
    weight: float

    def __call__(self, logits: Tensor, rows: Rows) -> Tensor:
        log_probs = self.function(rows)
        if not isinstance(log_probs, Tensor) or log_probs.shape != logits.shape:
            given = list(log_probs.shape) if isinstance(log_probs, Tensor) else repr(log_probs)
            raise ValueError(
                f"`model` must return log-probabilities [R, V] = {list(logits.shape)}, but returned {given}"
            )
        return logits + self.weight * log_probs.to(logits)


def _words_of_tokens(model: NGrams, tokenizer: Any) -> np.ndarray:
    """[V] int32, the word of each token, as `NGrams.automaton` takes them."""
    numbers = model.numbers
    if tokenizer is None:
        ids = {word: int(word) for word in model.words if ID.fullmatch(word)}
    elif isinstance(tokenizer, Tokenizer):
        ids = tokenizer.target_ids
    else:
        texts = Vocabulary.of(tokenizer).tokens
        ids = {text.decode("utf-8", "replace"): i for i, text in enumerate(texts) if text}
    common = {word: ids[word] for word in ids.keys() & numbers.keys() if word not in MARKS}
    if not common:
        known = sorted(set(numbers) - {*MARKS})[:3]
        raise ValueError(
            f"`model` must have words that are tokens, but has such as {known}; is it a model of words, "
            "`unit='word'`, or of another tokenizer?"
        )
    words = np.full(max(common.values()) + 1, NO_WORD, dtype=np.int32)
    if model.has_unknown_in_ngrams:
        if tokenizer is None:
            raise ValueError(
                f"`tokenizer` must say which tokens are {UNKNOWN}, which n-grams hold here, but is None"
            )
        written = Vocabulary.of(tokenizer).written
        words = np.full(max(len(words), *(token + 1 for token in written)), NO_WORD, dtype=np.int32)
        words[written] = NOWHERE
    for word, token in common.items():
        words[token] = numbers[word]
    return words


@dataclass(frozen=True)
class TokenLanguageModel(Constraint):
    """A constraint that forbids nothing. It has a class of its own, so that requests may change either."""
