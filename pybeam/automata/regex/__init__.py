"""Patterns as automata over tokens."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from pybeam.automata.automaton import Automaton
from pybeam.automata.regex.lifting import lift
from pybeam.automata.regex.patterns import characters_automaton
from pybeam.automata.vocabulary import Vocabulary

MAX_CACHED = 16


def regex_automaton(pattern: str | re.Pattern[str], tokenizer: Any) -> Automaton:
    r"""Return the automaton of the outputs whose whole text a pattern matches.

    An output is valid if ``re.fullmatch(pattern, text)`` is true of its text, as `Vocabulary` has it. The
    last patterns and vocabularies are remembered with their automata.

    Args:
        pattern: as `re` reads it: classes, repeats, alternatives, groups, anchors and flags. Classes such as
            \d and \w have the characters that they have in `re`, those of Unicode. A match of the whole
            text does not depend on whether a repeat is greedy.
        tokenizer: see `Vocabulary.of`.

    Raises:
        TypeError: the pattern is no text, or the tokenizer is none.
        ValueError: `re` cannot read the pattern; it has look-around, references to groups, word boundaries,
            atomic groups, possessive repeats or (?m); it needs too many states or edges; or no output has
            a text that it matches.
    """
    return _remembered(pattern, Vocabulary.of(tokenizer))


@lru_cache(maxsize=MAX_CACHED)
def _remembered(pattern: str | re.Pattern[str], vocabulary: Vocabulary) -> Automaton:
    return lift(characters_automaton(pattern), vocabulary)
