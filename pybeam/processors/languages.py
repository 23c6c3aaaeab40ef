"""`regex`: nothing but the outputs whose text a pattern matches."""

from __future__ import annotations

import re
from typing import Any

from pybeam.automata.regex import regex_automaton
from pybeam.processors.base import Stage
from pybeam.processors.constraints import Constraint, constraint


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
            text of each id as str or bytes, in a list or by id, None for EOS and other tokens without text.
        stage: see `pybeam.processors`.

    Raises:
        TypeError: the pattern is no text, or the tokenizer is none.
        ValueError: `re` cannot read the pattern; it has look-around, references to groups, word boundaries,
            atomic groups, possessive repeats or (?m); it needs too many states or edges; or no tokens spell a
            text that it matches. With a decoder or a request: as for `constraint`.
    """
    return constraint(regex_automaton(pattern, tokenizer), stage=stage)
