"""`regex` and `lexicon`: nothing but the outputs of a pattern, or of a list of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pybeam.arguments import ids
from pybeam.automata.lexicon import SpeltWords, lexicon_automaton
from pybeam.automata.regex import regex_automaton
from pybeam.processors.base import Stage
from pybeam.processors.constraints import Constraint, constraint
from pybeam.text.tokenizer import Tokenizer


def regex(
    pattern: str | re.Pattern[str], tokenizer: Any, *, stage: Stage = "log_probs"
) -> Constraint:
    r"""Allow nothing but outputs whose whole text a pattern matches: ``re.fullmatch(pattern, text)``.

    The pattern is one of Python's `re`: classes, repeats, alternatives, groups, anchors and flags mean what
    they mean there, and \\d and \\w have the characters of Unicode. The text is that of
    ``tokenizer.decode(tokens, strips=False)``: where a tokenizer drops the space before the first word, the
    pattern does not see that space. All ways to write a text by tokens are allowed. It is a `constraint`, so
    all that is said there holds, and requests may bring patterns of their own.

    A pattern is compiled once for a tokenizer, and the last ones are remembered. A date takes 0.1 s with
    128,000 tokens, and ``.{1,200}`` a second.

    Per request: the pattern.

    Args:
        pattern: a text, or one that `re.compile` has compiled.
        tokenizer: a `pybeam.Tokenizer`; one of transformers; or an object whose method `vocab()` gives the
            text of each id as str or bytes, in a list or by id, None for EOS and other tokens without text;
            or a `pybeam.automata.vocabulary.Vocabulary`. An output that goes on with a prompt keeps the space
            before its first word: that is ``Vocabulary.of(tokenizer).continuing``.
        stage: see `pybeam.processors`.

    Raises:
        TypeError: the pattern is no text, or the tokenizer is none.
        ValueError: `re` cannot read the pattern; it has look-around, references to groups, word boundaries,
            atomic groups, possessive repeats or (?m); it needs too many states or edges; or no tokens spell a
            text that it matches. With a decoder or a request: as for `constraint`.
    """
    return constraint(regex_automaton(pattern, tokenizer), stage=stage)


def lexicon(
    words: Mapping[str, Sequence[Any]] | Iterable[str],
    tokenizer: Tokenizer | None = None,
    *,
    stage: Stage = "log_probs",
) -> Constraint:
    """Allow nothing but words of a list, one behind another, as lexicon decoders do (Collobert et al. 2016).

    An output is any number of words, 0 too, each of them as often as the model likes. Where one word begins
    another, both the longer one and a new one may follow. It is a `constraint`, so all that is said there
    holds, and requests may bring lists of their own.

    Words are texts that `tokenizer` spells as it spells them between spaces, so an output is words with one
    space between them, and punctuation is no word. Other spellings are a mapping. A list of 30,000 words
    takes 3 s to compile.

    Per request: the words.

    Args:
        words: texts, such as the words of a prefix tree; or from each word to its tokens, or to several lists
            of tokens that spell the word.
        tokenizer: of the texts; None for a mapping.
        stage: see `pybeam.processors`.

    Raises:
        TypeError: `words` are neither, or `tokenizer` is none.
        ValueError: there is no word, a word has no tokens, or an automaton of the words has more than
            67,108,864 edges. With a decoder or a request: as for `constraint`.
    """
    return constraint(lexicon_automaton(*_spellings(words, tokenizer)), stage=stage)


def _spellings(words: Any, tokenizer: Any) -> SpeltWords:
    if isinstance(words, Mapping):
        if tokenizer is not None:
            raise TypeError("`tokenizer` must be None for words that are spelt already")
        several = [_lists(spelling) for spelling in words.values()]
        return SpeltWords([ids("words", one) for spellings in several for one in spellings], [])
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise TypeError(
            f"`words` must be a list of words, or their tokens by word, but is {words!r}"
        )
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(
            f"`tokenizer` must be a pybeam.Tokenizer, but is {tokenizer!r}; without one, give a dict of "
            "words and their tokens"
        )
    return SpeltWords.of(words, tokenizer)


def _lists(spelling: Any) -> list[Any]:
    """Return the spellings of a word, of which there may be several."""
    first = next(iter(spelling), None) if isinstance(spelling, Iterable) else None
    return [*spelling] if isinstance(first, Sequence) else [spelling]
