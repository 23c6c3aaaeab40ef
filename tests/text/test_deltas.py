"""Deltas of a text are right whatever a tokenizer does with its last tokens."""

import pytest

import pybeam
from pybeam import TextDeltas
from support.example_lines import LINES
from support.paths import MODEL


def joined(decode, tokens) -> str:
    deltas = TextDeltas(decode)
    parts = [deltas.more(tokens[:end]) for end in range(1, len(tokens) + 1)]
    return "".join([*parts, deltas.rest(decode(tokens))])


@pytest.mark.parametrize("line", LINES)
def test_sentencepiece(line):
    tokenizer = pybeam.load_tokenizer(MODEL)
    tokens = tokenizer.encode_target(line)
    assert joined(tokenizer.decode, tokens) == tokenizer.decode(tokens)


def test_characters_of_several_tokens():
    def decode(tokens):
        return bytes(tokens).decode("utf-8", "replace").strip()

    for text in ("a ñ b", "😀😀", "ñ", " a"):
        tokens = list(text.encode())
        assert joined(decode, tokens) == text.strip()


def test_a_replacement_character_of_the_output_itself():
    def decode(tokens):
        return "".join(map(chr, tokens))

    text = "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
    assert joined(decode, list(map(ord, text))) == text


def test_a_text_that_changes_its_beginning_is_held_back():
    texts = ["do", "do n", "do n't you", "don't you think so"]
    deltas = TextDeltas(lambda tokens: texts[len(tokens)])
    assert [deltas.more([0] * n) for n in range(4)] == ["do", " n", "'t you", ""]
