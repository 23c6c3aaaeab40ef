"""`Grammar`: a grammar over the tokens of a vocabulary, which llguidance reads and follows."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pybeam.automata.vocabulary import Vocabulary

# Where one text alone may follow, llguidance would allow one way alone to spell it in tokens. The line stands
# behind a grammar, so that messages have the numbers of the grammar's own lines.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# a token that begins so is a name to llguidance; no text has this byte
MARKER = b"\xff"
NO_WORD, EMPTY = -1, -2
# grammars of each vocabulary
MOST_KEPT = 16
# of each grammar, whoever follows it; a state takes 1 to 2 kB
MAX_LEXER_STATES = 20_000


class GrammarError(ValueError):
    """A grammar is wrong, too large, or too complex to be followed."""


class Part(IntEnum):
    """Where an output is in its text."""

    INSIDE = 0
    START = 1
    SKIPPED = 2  # at the start still, behind a token that adds nothing there


class State(NamedTuple):
    """Where an output is in a grammar."""

    matcher: Any  # None: nothing valid begins so
    part: Part


NOWHERE = State(None, Part.INSIDE)


class Grammar:
    """A grammar that is ready for a vocabulary. It does not change, and threads may share it.

    `Grammar.of` makes one, and keeps the last ones.

    Args:
        text: a grammar in llguidance's dialect of Lark.
        vocabulary: of the outputs.

    Raises:
        ImportError: llguidance is missing.
        GrammarError: the grammar is wrong or too large, in llguidance's words.

    Attributes:
        number: of this grammar alone, from 1 on.
        is_spent: whether llguidance has given up on an output. It may give up on others, which share what it
            keeps of the grammar.
    """

    _numbers = count(1)

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        library = _llguidance()
        self.number, self.is_spent = next(self._numbers), False
        self._words = _words(vocabulary)
        limits = library.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        whole = library.LLMatcher.grammar_from_lark(text + NO_FORCING)
        # only copies go on from here
        self._start = library.LLMatcher(self._words.tokenizer, whole, log_level=0, limits=limits)
        if self._start.is_error():
            raise GrammarError(self._start.get_error())

    @staticmethod
    def is_kept(text: str, vocabulary: Vocabulary) -> bool:
        """Whether `of` need not make the grammar."""
        return text in _KEPT.get(vocabulary, ())

    @classmethod
    def of(cls, text: str, vocabulary: Vocabulary) -> Grammar:
        """Return a grammar, which is the same one if it was made a short while ago."""
        kept = _KEPT.setdefault(vocabulary, OrderedDict())
        found = kept.pop(text, None)
        if found is None or found.is_spent:
            found = cls(text, vocabulary)
        kept[text] = found
        if len(kept) > MOST_KEPT:
            kept.popitem(last=False)
        return found

    def start(self) -> State:
        """Return where outputs begin."""
        return State(self._start.deep_copy(), Part.START)

    def step(self, state: State, token: int) -> State:
        """Return where a token leads. Raises GrammarError if the grammar becomes too complex there."""
        matcher, part = state
        words = self._words.opening if part else self._words.inner
        word = words[token] if token < len(words) else NO_WORD
        if matcher is None or word == NO_WORD:
            return NOWHERE
        own = matcher.deep_copy()
        if word == EMPTY:
            behind = Part.SKIPPED if self._words.skips else Part.INSIDE
            return State(own, behind) if part == Part.START else NOWHERE
        if own.consume_token(word):
            return State(own, Part.INSIDE)
        if matcher.validate_tokens([word]):
            raise self._given_up(own)
        return NOWHERE

    def masks(self, states: Sequence[State]) -> Masks:
        """Return what may follow each of these states, which are all different.

        Threads share the work, without Python's lock. Nobody else may use the states meanwhile.

        Raises:
            GrammarError: the grammar becomes too complex there.
        """
        words = self._words
        found = np.zeros((len(states), words.num_bytes), dtype=np.uint8)
        pairs = [(s.matcher, i) for i, s in enumerate(states) if s.matcher is not None]
        if pairs:
            threads = _threads(os.getpid(), torch.get_num_threads())
            threads.unsafe_compute_mask_ptr(pairs, found.ctypes.data, words.num_bytes, len(found))
        for matcher, _ in pairs:
            # llguidance would end an output where it gives up
            if matcher.is_error():
                raise self._given_up(matcher)
        return words.masks(found, np.array([state.part for state in states]))

    def _given_up(self, matcher: Any) -> GrammarError:
        self.is_spent = True
        return GrammarError(f"the grammar is too complex to be followed: {matcher.get_error()}")


class Masks(NamedTuple):
    """The tokens that may follow each state."""

    allowed: np.ndarray  # [n, W] uint8, a bit for each id of the vocabulary, lowest bits first
    may_end: np.ndarray  # [n] bool


class _Words(NamedTuple):
    """The texts of a vocabulary as llguidance has them.

    Its words are the ids, other texts with which an output may begin, and one for the end.
    """

    tokenizer: Any
    inner: list[int]  # the word of every id, or `NO_WORD`
    opening: list[int]  # the same where an output begins, or `EMPTY`
    end: int
    skips: bool  # as `Vocabulary.skips`
    opening_bit: np.ndarray  # [V] the place of each id's bit where an output begins

    @property
    def num_bytes(self) -> int:
        """Bytes of a mask: llguidance's has whole words of 32 bits."""
        return 4 * (self.end // 32 + 1)

    def masks(self, found: np.ndarray, part: np.ndarray) -> Masks:
        """Make masks of ids of masks of words [n, num_bytes]; `part` [n] as in `State`."""
        num = len(self.inner)
        may_end = (found[:, self.end // 8] >> (self.end % 8) & 1).astype(bool)
        allowed = found[:, : -(-num // 8)].copy()
        begins = np.flatnonzero(part)
        if len(begins):
            bits = np.unpackbits(found[begins], axis=1, bitorder="little")
            bits = np.pad(bits, ((0, 0), (0, 2)))
            bits[:, NO_WORD] = 0
            # one token may add nothing: with any number, search would find many spellings of one text
            bits[:, EMPTY] = part[begins] == Part.START
            allowed[begins] = np.packbits(bits[:, self.opening_bit], axis=1, bitorder="little")
        # words behind the ids have bits of their own
        if num % 8:
            allowed[:, -1] &= (1 << num % 8) - 1
        return Masks(allowed, may_end)


_KEPT: WeakKeyDictionary[Vocabulary, OrderedDict[str, Grammar]] = WeakKeyDictionary()
_WORDS: WeakKeyDictionary[Vocabulary, _Words] = WeakKeyDictionary()


def _words(vocabulary: Vocabulary) -> _Words:
    found = _WORDS.get(vocabulary)
    if found is None:
        found = _WORDS[vocabulary] = _read(vocabulary)
    return found


def _read(vocabulary: Vocabulary) -> _Words:
    library = _llguidance()
    texts = [b"" if one is None or one[:1] == MARKER else one for one in vocabulary.tokens]
    word_of = {text: word for word, text in enumerate(texts) if text}
    inner = [word if text else NO_WORD for word, text in enumerate(texts)]
    opening = []
    for text in vocabulary.opening:
        if not text or text[:1] == MARKER:
            opening.append(EMPTY if text == b"" else NO_WORD)
            continue
        word = word_of.setdefault(text, len(texts))
        if word == len(texts):
            texts.append(text)
        opening.append(word)
    tokenizer = library.LLTokenizer(library.TokenizerWrapper(_Texts([*texts, MARKER + b"end"])))
    bit = np.array(opening, dtype=np.int64)
    return _Words(tokenizer, inner, opening, len(texts), vocabulary.skips, bit)


class _Texts:
    """A tokenizer as llguidance takes one. The last text is the end."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens, self.eos_token_id = tokens, len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        """Return no tokens: no grammar here asks how a text is spelt."""
        return []


@lru_cache(4)
def _threads(process: int, num: int) -> Any:
    """Return what makes masks in so many threads. A copy of a process has none of the threads."""
    return _llguidance().LLExecutor(num_threads=num)


def _llguidance() -> Any:
    try:
        return import_module("llguidance")
    except ImportError as error:
        raise ImportError(
            "grammars need the package llguidance: `pip install 'pybeam-search[grammars]'`"
        ) from error
