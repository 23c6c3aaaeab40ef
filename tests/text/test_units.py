"""Parts that are cut out of a text come back, whatever becomes of the rest."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam.text.units import Template, at_most, chain, protected, sentences, whole

pytest.importorskip("sentencex")

LANGUAGES = ("es", "en", "zh", "tlh")
TAGS = r"<[^>]*>|\{\w+\}|https?://\S+"
ALPHABET = [
    *"aÑ. ?!\n\t\r«»\"(),;:¿¡。\uff1f中…'1<>{}\x85\u3000\u2028",
    "Sr. ",
    "J. ",
    "<b>",
    "{n}",
    "🙂",
]
texts = st.lists(st.sampled_from(ALPHABET), max_size=40).map("".join)


def words(text: str) -> int:
    return len(text.split())


@settings(deadline=None)
@given(texts, st.sampled_from(LANGUAGES))
def test_a_template_filled_with_its_own_texts_is_the_text(text, language):
    splits = protected(TAGS), sentences(language), at_most(3, len)
    for split in (*splits, chain(splits), chain(reversed(splits)), chain([]), whole):
        template = split(text)
        assert template.fill(template.texts) == text
        assert len(template.kept) == len(template.texts) + 1


@settings(deadline=None)
@given(texts)
def test_gaps_have_words_and_no_spaces_around(text):
    for split in (protected(TAGS), sentences("es"), at_most(3, len)):
        template = split(text)
        if template != whole(text):
            assert all(re.search(r"\w", gap) and gap == gap.strip() for gap in template.texts)


def test_sentences():
    text = "  Dijo el Sr. García: «Ven.»  ¿Qué tal?\n\nBien. … "
    assert sentences("es")(text) == Template(
        ("  ", "  ", "\n\n", " "), ("Dijo el Sr. García: «Ven.»", "¿Qué tal?", "Bien. …")
    )


def test_spaces_that_sentencex_cannot_read():
    assert sentences("es")("A\u3000.") == Template(("", ""), ("A\u3000.",))
    assert sentences("es")("Vino J.\u3000Pérez.\xa0Adiós.").texts == (
        "Vino J.\u3000Pérez.",
        "Adiós.",
    )


def test_a_splitter_that_loses_text_splits_nothing(monkeypatch):
    import sentencex

    monkeypatch.setattr(sentencex, "segment", lambda language, text: [text[:3], text[4:]])
    assert sentences("es")("Uno. Dos.") == whole("Uno. Dos.")


@settings(deadline=None)
@given(texts, st.lists(st.text(max_size=5), min_size=6, max_size=6))
def test_every_match_is_in_the_output_once_and_in_order(text, translations):
    template = protected(TAGS)(text)
    matches = [match.group() for match in re.finditer(TAGS, text)]
    kept = "".join(template.kept)
    if matches:
        assert [match.group() for match in re.finditer(TAGS, "\0".join(template.kept))] == matches
    output = template.fill((10 * translations)[: len(template.texts)])
    for match in matches:
        assert match in kept
        assert match in output
        output = output[output.index(match) + len(match) :]


def test_protected_texts():
    assert protected(TAGS)("Mira <b>la luz</b>, {name}. Ven a https://a.b/?c=d ahora") == Template(
        ("", " <b>", "</b>, {name}. ", " https://a.b/?c=d ", ""),
        ("Mira", "la luz", "Ven a", "ahora"),
    )
    assert protected(TAGS)("<br/>") == Template(("<br/>",), ())
    assert protected("x*")("a xx b").kept == ("", " xx ", "")


def test_a_text_without_matches_is_one_gap():
    for text in ("", "...", " Hola. Adiós. "):
        assert protected(TAGS)(text) == Template(("", ""), (text,))


@settings(deadline=None)
@given(texts, st.integers(1, 9))
def test_parts_are_short_enough(text, limit):
    assert all(len(part) <= limit for part in at_most(limit, len)(text).texts)


@pytest.mark.parametrize(
    "text, parts",
    [
        ("uno dos tres cuatro", ("uno dos tres cuatro",)),
        ("uno. dos tres, cuatro cinco", ("uno.", "dos tres, cuatro cinco")),
        ("uno dos, tres cuatro cinco", ("uno dos,", "tres cuatro cinco")),
        ("uno dos tres cuatro cinco", ("uno dos tres", "cuatro cinco")),
        ("1.5 dos tres cuatro cinco", ("1.5 dos tres", "cuatro cinco")),
    ],
)
def test_where_an_overlong_text_is_split(text, parts):
    assert at_most(4, words)(text).texts == parts


def test_bad_arguments():
    with pytest.raises(ValueError, match="`pattern` must be a regular expression, but is '\\('"):
        protected("(")
    with pytest.raises(ValueError, match="`limit` must be at least 1"):
        at_most(0, len)
    with pytest.raises(ValueError, match="must be 1, one for each text, but there are 2"):
        whole("a").fill(["b", "c"])


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencex", None)
    with pytest.raises(ImportError, match="documents"):
        sentences("es")
