"""Patterns of Python's `re` as automata over characters.

Python's own parser reads them, and `re` itself says which characters a class has, so a pattern means here
what it means there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from re import _constants as names  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from pybeam.automata.regex.character_automaton import CharacterAutomaton
from pybeam.automata.regex.character_sets import NUM_CHARACTERS, CharacterSet, characters_of
from pybeam.automata.regex.nfa import Ends, Guard, Nfa

# that change which characters a class has
OF_CLASSES = re.IGNORECASE | re.ASCII | re.DOTALL | re.UNICODE
ANCHORS = {
    names.AT_BEGINNING: Guard.START,
    names.AT_BEGINNING_STRING: Guard.START,
    names.AT_END: Guard.LAST_LINE,
    names.AT_END_STRING: Guard.END,
}
CATEGORIES = {
    names.CATEGORY_DIGIT: r"\d",
    names.CATEGORY_NOT_DIGIT: r"\D",
    names.CATEGORY_SPACE: r"\s",
    names.CATEGORY_NOT_SPACE: r"\S",
    names.CATEGORY_WORD: r"\w",
    names.CATEGORY_NOT_WORD: r"\W",
}
REFUSED = {
    names.ASSERT: "a look-around, (?=…) or (?<=…)",
    names.ASSERT_NOT: "a look-around, (?!…) or (?<!…)",
    names.GROUPREF: r"a reference to a group, such as \1",
    names.GROUPREF_EXISTS: "a condition on a group, (?(1)…)",
    names.ATOMIC_GROUP: "an atomic group, (?>…)",
    names.POSSESSIVE_REPEAT: "a possessive repeat, such as a*+",
}
# numbers of anchors are those of other parts, too
REFUSED_ANCHORS = {
    names.AT_BOUNDARY: r"a word boundary, \b",
    names.AT_NON_BOUNDARY: r"\B",
}


def characters_automaton(pattern: str | re.Pattern[str]) -> CharacterAutomaton:
    """Return the smallest automaton of the texts that ``re.fullmatch(pattern, text)`` accepts.

    Raises:
        ValueError: `re` cannot read the pattern, or it has what no finite automaton can, or it needs too
            many states, or it matches no text.
    """
    text, flags = pattern, 0
    if isinstance(pattern, re.Pattern):
        text, flags = pattern.pattern, pattern.flags
    try:
        tree = parser.parse(text, flags)
        reader = Reader(Nfa())
        return reader.nfa.automaton(reader.sequence(tree, tree.state.flags))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"`pattern` must be a regular expression of `re`, but {text!r} is none: {error}"
        ) from error


class Reader:
    """Add the parts of a parsed pattern to an automaton (Thompson 1968)."""

    def __init__(self, nfa: Nfa) -> None:
        self.nfa = nfa
        self._of: dict[Any, Callable[[Any, int], Ends]] = {
            names.BRANCH: lambda value, flags: self._branch(value[1], flags),
            names.SUBPATTERN: self._group,
            names.MAX_REPEAT: self._repeat,
            names.MIN_REPEAT: self._repeat,
            names.AT: self._anchor,
            names.FAILURE: lambda value, flags: (self.nfa.node(), self.nfa.node()),
        }

    def sequence(self, tree: Any, flags: int) -> Ends:
        begin = end = self.nfa.node()
        for op, value in tree:
            if op in REFUSED:
                _refuse(REFUSED[op])
            read = self._of.get(op)
            if read is None:
                part = self.nfa.read(_characters(op, value, flags))
            else:
                part = read(value, flags)
            self.nfa.join(end, part[0])
            end = part[1]
        return begin, end

    def _branch(self, trees: Any, flags: int) -> Ends:
        begin, end = self.nfa.node(), self.nfa.node()
        for tree in trees:
            first, last = self.sequence(tree, flags)
            self.nfa.join(begin, first)
            self.nfa.join(last, end)
        return begin, end

    def _group(self, value: Any, flags: int) -> Ends:
        _, added, removed, tree = value
        return self.sequence(tree, (flags | added) & ~removed)

    def _repeat(self, value: Any, flags: int) -> Ends:
        least, most, tree = value
        nfa = self.nfa
        begin = end = nfa.node()
        for _ in range(least):
            first, last = self.sequence(tree, flags)
            nfa.join(end, first)
            end = last
        leaves = nfa.node()
        nfa.join(end, leaves)
        if most is names.MAXREPEAT:
            first, last = self.sequence(tree, flags)
            nfa.join(end, first)
            nfa.join(last, end)
            return begin, leaves
        for _ in range(least, most):
            first, last = self.sequence(tree, flags)
            nfa.join(end, first)
            nfa.join(last, leaves)
            end = last
        return begin, leaves

    def _anchor(self, value: Any, flags: int) -> Ends:
        if value in REFUSED_ANCHORS:
            _refuse(REFUSED_ANCHORS[value])
        if flags & re.MULTILINE and value in (names.AT_BEGINNING, names.AT_END):
            _refuse("^ or $ with the flag (?m)")
        return self.nfa.guard(ANCHORS[value])


def _refuse(what: str) -> None:
    raise ValueError(
        f"`pattern` must be regular, but has {what}: whether that matches cannot be known from a state"
    )


def _characters(op: Any, value: Any, flags: int) -> CharacterSet:
    if op is names.LITERAL and not flags & re.IGNORECASE:
        return ((value, value + 1),)
    if op is names.NOT_LITERAL and not flags & re.IGNORECASE:
        outside = ((0, value), (value + 1, NUM_CHARACTERS))
        return tuple(span for span in outside if span[0] < span[1])
    return characters_of(_source(op, value), flags & OF_CLASSES)


def _source(op: Any, value: Any) -> str:
    """Write such a part of a pattern as a pattern again."""
    if op is names.ANY:
        return "."
    if op is names.LITERAL:
        return f"[{_escaped(value)}]"
    if op is names.NOT_LITERAL:
        return f"[^{_escaped(value)}]"
    assert op is names.IN, op
    return "".join(["[", *(_item(kind, one) for kind, one in value), "]"])


def _item(kind: Any, value: Any) -> str:
    if kind is names.NEGATE:
        return "^"
    if kind is names.LITERAL:
        return _escaped(value)
    if kind is names.RANGE:
        return f"{_escaped(value[0])}-{_escaped(value[1])}"
    assert kind is names.CATEGORY, kind
    return CATEGORIES[value]


def _escaped(character: int) -> str:
    return f"\\U{character:08x}"
