"""`regex_automaton`: the outputs whose texts `re.fullmatch` accepts, and no others."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pybeam
from pybeam.automata.automaton import NEVER
from pybeam.automata.regex import lifting, nfa, regex_automaton
from pybeam.automata.vocabulary import Vocabulary
from support.paths import MODEL

# parts of ñ, ☃ and 😀 among them, and what only some flags join
TEXTS = (b"a", b"ab", b"b", "ñ".encode(), b"\xc3", b"\xb1", b"\xb1a", b"\xe2\x98", b"\x83")
TEXTS += (b"\n", b"1", b" a", b"K", b"\xf0\x9f", b"\x98\x80", "\u0663".encode(), "\u212a".encode())


def vocabulary(texts, drops: str = "") -> Vocabulary:
    """A vocabulary with a control token, whose texts may drop one or all spaces in front."""
    tokens = (None, *texts)
    opening = {
        "": lambda text: text,
        "one": lambda text: text[text.startswith(b" ") :],
        "all": lambda text: text.lstrip(b" "),
    }[drops]
    cut = tuple(None if text is None else opening(text) for text in tokens)
    return Vocabulary(tokens, cut, skips=drops == "all")


PLAIN = vocabulary(TEXTS)
VOCABULARIES = {"": PLAIN} | {
    drops: vocabulary((*TEXTS[:4], TEXTS[9], TEXTS[11], b" ", b"  "), drops)
    for drops in ("one", "all")
}


def brute_force(pattern, vocabulary: Vocabulary, length: int) -> set[tuple[int, ...]]:
    """All outputs of up to so many tokens that are UTF-8 and match."""
    matches, found = re.compile(pattern).fullmatch, set()
    for num in range(length + 1):
        for ids in itertools.product(vocabulary.written, repeat=num):
            try:
                text = vocabulary.text(ids).decode()
            except UnicodeDecodeError:
                continue
            if matches(text):
                found.add(ids)
    return found


def outputs(automaton, length: int) -> set[tuple[int, ...]]:
    found, todo = set(), [((), automaton.start)]
    while todo:
        ids, state = todo.pop()
        if automaton.final[state] == 0:
            found.add(ids)
        if len(ids) < length:
            for edge in range(automaton.first[state], automaton.first[state + 1]):
                behind = int(automaton.target[edge])
                todo.append(((*ids, int(automaton.token[edge])), behind))
    return found


def assert_exact(pattern, vocabulary: Vocabulary, length: int) -> None:
    expected = brute_force(pattern, vocabulary, length)
    try:
        automaton = regex_automaton(pattern, vocabulary)
    except ValueError as error:
        assert "match" in str(error)
        assert not expected
        return
    assert outputs(automaton, length) == expected
    # every state can end, and is reached
    assert (automaton.needed < NEVER).all()
    assert {automaton.start, *automaton.target.tolist()} == {*range(automaton.num_states)}


@pytest.mark.thinned(most=12)
@pytest.mark.parametrize("drops", VOCABULARIES)
@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a*",
        "(a|b)+ñ?",
        "(a|ab)(b|)",
        "a??b{1,2}?",
        "ñ+",
        "☃|ñ",
        "[ñ😀]a?",
        "[^a]{2}",
        ".{2}",
        "(?s).{2}",
        r"\w{1,2}",
        r"\d+|\s",
        r"(?a)\d+|\W",
        "(?i)k+",
        "(?i:ñ)a|Ñ",
        "(?s:.)(?-s:.)",
        "(?x) a b # c",
        "a$\n?",
        "(^a|b)c?",
        "($|a)\n*",
        r"\Aa\Z",
        "(?:a$|b)\n",
        "a* a",
        " ?a?",
        r"(?P<one>a)\x62",
        re.compile("AB?", re.IGNORECASE),
        r"[^\s\S]",
        "(?!)",
        "x",
    ],
)
def test_outputs_are_those_whose_texts_match(pattern, drops):
    assert_exact(pattern, VOCABULARIES[drops], 2 + bool(drops))


CHARACTERS = st.sampled_from("ab1ñ☃\n ")
PARTS = CHARACTERS | st.sampled_from([".", r"\w", "[^a]", "[a-ñ]", r"[\d\s]", "$", "^"])
PATTERNS = st.recursive(
    PARTS,
    lambda part: st.one_of(
        st.lists(part, max_size=3).map("".join),
        st.lists(part, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(part, st.sampled_from(["*", "+?", "?", "{1,2}", "{2}"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
        part.map(lambda one: f"(?i:{one})"),
    ),
    max_leaves=6,
)
TOKENS = st.lists(CHARACTERS, min_size=1, max_size=2).map(lambda text: "".join(text).encode())
TOKENS |= st.sampled_from([b"\xc3", b"\xb1", b"\xe2", b"\x98\x83", b"A", b"\x83a\xc3"])


@pytest.mark.parametrize("num", [15, pytest.param(500, marks=pytest.mark.slow)])
def test_any_pattern_over_any_vocabulary(num):
    texts = st.lists(TOKENS, min_size=1, max_size=5, unique=True)

    @given(PATTERNS, texts, st.sampled_from([*VOCABULARIES]))
    @settings(max_examples=num, deadline=None)
    def check(pattern, texts, drops):
        assert_exact(pattern, vocabulary(texts, drops), 4)

    check()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"(a)\1", r"has a reference to a group, such as \\1"),
        (r"(?=a)b", r"has a look-around, \(\?=…\)"),
        (r"b(?<!a)", r"has a look-around, \(\?!…\)"),
        (r"(a)?(?(1)b|c)", r"has a condition on a group"),
        (r"(?>a*)b", r"has an atomic group"),
        (r"a*+b", r"has a possessive repeat"),
        (r"\ba", r"has a word boundary, \\b"),
        (r"a\Bb", r"has \\B"),
        (r"(?m)^a", r"has \^ or \$ with the flag"),
        ("(a", r"must be a regular expression of `re`, but '\(a' is none: missing \)"),
        ("(" * 5000, "must be a regular expression of `re`"),
        (r"a[^\s\S]", "must match some text, but matches none"),
        ("x", "must match the text of some output, but no tokens spell one"),
    ],
)
def test_what_no_automaton_has_is_refused(pattern, problem):
    with pytest.raises(
        ValueError, match=f"`pattern` {problem}|`pattern` must be regular, but {problem}"
    ):
        regex_automaton(pattern, PLAIN)


def test_bytes_are_no_pattern():
    with pytest.raises(
        TypeError, match="`pattern` must be a str or compiled from one, but is b'a'"
    ):
        regex_automaton(b"a", PLAIN)
    for wrong in (re.compile(b"a"), None, ["a"]):
        with pytest.raises(TypeError, match="`pattern` must be a str"):
            regex_automaton(wrong, PLAIN)


@pytest.mark.parametrize(
    ("module", "name", "problem"),
    [
        (lifting, "MAX_STATES", "need at most 40 states with these tokens, but needs"),
        (lifting, "MAX_EDGES", "need at most 40 edges with these tokens, but needs"),
        (nfa, "MAX_CHARACTER_STATES", "need at most 40 states, but needs more"),
        (nfa, "MAX_NODES", "have at most 40 parts, each repeat counted, but has more"),
    ],
)
def test_limits_have_names(module, name, problem, monkeypatch):
    monkeypatch.setattr(module, name, 40)
    with pytest.raises(ValueError, match=f"`pattern` must {problem}"):
        regex_automaton(r"\w{99}", vocabulary(TEXTS))


def test_a_pattern_is_compiled_once():
    assert regex_automaton("a+b", PLAIN) is regex_automaton("a+b", PLAIN)
    assert regex_automaton("a+b", PLAIN) is not regex_automaton("a+b", vocabulary(TEXTS))
    upper = regex_automaton(re.compile("a+b", re.IGNORECASE), PLAIN)
    assert upper is not regex_automaton("a+b", PLAIN)


def test_the_states_are_few():
    """Repeats, overlaps and characters of several bytes do not multiply states."""
    letters = vocabulary([b"a", b"b", b"c"])
    assert regex_automaton("(a|b|ab|ba)*c", letters).num_states == 2
    assert regex_automaton("(?:ab|cb|bb)+", letters).num_states == 3
    # within ☃, behind one byte and behind two
    snow = vocabulary([b"\xe2", b"\x98", b"\x83"])
    assert regex_automaton("☃*", snow).num_states == 3
    # which of them was first is all that matters within any character
    assert regex_automaton("(?s).*", snow).num_states == 3


@pytest.mark.slow
def test_an_example_tokenizer():
    """Random walks give texts that match, and texts that match are walks."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    random = np.random.default_rng(0)
    for pattern in (
        r"\d{4}-\d{2}-\d{2}",
        r"And .{1,20}[.:;]",
        r"(?i)(yes|no), \w+",
        "[^ ]+@[a-z]+",
    ):
        automaton = regex_automaton(pattern, tokenizer)
        for _ in range(20):
            ids, state = [], automaton.start
            while automaton.final[state] != 0 or random.random() < 0.5:
                begin, end = automaton.first[state], automaton.first[state + 1]
                if begin == end:
                    break
                # not far from an end
                edges = np.arange(begin, end)
                needed = automaton.needed[automaton.target[edges]]
                edge = random.choice(edges[needed <= needed.min() + (len(ids) < 6)])
                ids.append(int(automaton.token[edge]))
                state = int(automaton.target[edge])
            assert re.fullmatch(pattern, tokenizer.decode(ids, strips=False)), ids
    automaton = regex_automaton(r"And .{1,20}\.", tokenizer)
    for text in ("And he went up.", "And ñandú ☃ came.", "And."):
        matches = re.fullmatch(r"And .{1,20}\.", text) is not None
        assert (automaton.score(tokenizer.encode_target(text)) == 0) == matches
