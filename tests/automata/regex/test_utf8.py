"""`Utf8`: bytes give the classes of the characters that Python decodes from them, and nothing else."""

from __future__ import annotations

import random
import re

import pytest

from pybeam.automata.regex.character_sets import NUM_CHARACTERS, characters_of, classes_of
from pybeam.automata.regex.utf8 import BROKEN, NO_CLASS, ROOT, Utf8

# at the ends of every length of UTF-8
EDGES = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)


def read(utf8: Utf8, data: bytes) -> int | None:
    """The class of the only character in these bytes; None: there is none, or another number of them."""
    node, classes = ROOT, []
    for byte in data:
        if node == BROKEN or classes:
            return None
        classes = [c for c in [int(utf8.character[node, byte])] if c != NO_CLASS]
        node = int(utf8.node[node, byte])
    return classes[0] if node == ROOT and classes else None


def decoded(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) == 1 else None


@pytest.mark.parametrize("source", [".", r"\w", r"[^\d\s]", "[é-\U0001f600]", r"[\n\U0010ffff]"])
def test_characters_of_a_set(source):
    class_of, [classes] = classes_of([characters_of(source, 0)])
    utf8, matches = Utf8.of(class_of), re.compile(source).fullmatch
    assert classes == [1]
    draw = random.Random(source)
    codes = [*EDGES, *range(0x250), *(draw.randrange(NUM_CHARACTERS) for _ in range(2000))]
    for character in map(chr, codes):
        data = character.encode("utf-8", "surrogatepass")
        expected = 1 if decoded(data) and matches(character) else None
        assert read(utf8, data) == expected, character


def test_broken_bytes():
    utf8 = Utf8.of(classes_of([((0, NUM_CHARACTERS),)])[0])
    draw = random.Random(0)
    # first bytes, and those behind them, at the edges of what is allowed
    first = [0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5]
    behind = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    for _ in range(5000):
        data = bytes([draw.choice(first), *draw.choices(behind, k=draw.randint(0, 3))])
        assert (read(utf8, data) == 1) == (decoded(data) is not None), data


def test_classes_tell_sets_apart():
    digits, word, most = (characters_of(source, 0) for source in (r"\d", r"\w", "[^é]"))
    class_of, classes = classes_of([digits, word, most])
    for character in "7é_ ñ\u0663":
        number = class_of[ord(character)]
        found = [number in one for one in classes]
        assert found == [bool(re.match(p, character)) for p in (r"\d", r"\w", "[^é]")]
    # digits, é, other letters, all else
    assert class_of.max() == 4
    # halves of pairs are in no text
    assert (class_of == 0).sum() == 0x800
