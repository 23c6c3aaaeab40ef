"""Patterns as automata over tokens."""

from __future__ import annotations

import re
from typing import Any

from pybeam.automata.automaton import Automaton
from pybeam.automata.kept import Kept
from pybeam.automata.regex.lifting import lift
from pybeam.automata.regex.patterns import characters_automaton
from pybeam.automata.vocabulary import Vocabulary

_KEPT = Kept(32, 1 << 30)


def regex_automaton(pattern: str | re.Pattern[str], tokenizer: Any) -> Automaton:
    r"""Return the automaton of the outputs whose whole text a pattern matches.

    An output is valid if ``re.fullmatch(pattern, text)`` is true of its text, as `Vocabulary` has it. The
    automata of the last patterns and vocabularies are remembered.

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
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise TypeError(f"`pattern` must be a str or compiled from one, but is {pattern!r}")
    key = pattern, Vocabulary.of(tokenizer)
    return _KEPT.get(key, lambda: lift(characters_automaton(pattern), key[1]))
