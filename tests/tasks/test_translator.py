"""`Translator` gives what four objects give: a model, a tokenizer, a search and a decoder."""

from __future__ import annotations

import asyncio
import gc
import pickle

import pytest

import pybeam
from pybeam.arguments import ArgumentError
from support.paths import MODEL
from support.text_folders import LANGUAGES, save_nllb

LINES = ["Jesús lloró.", "Y vió Dios que era bueno.", "Yo soy la luz del mundo."]
TOO_LONG = "luz " * 600


@pytest.fixture(scope="module")
def translator():
    return pybeam.load(MODEL, device="cpu")


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nllb")
    save_nllb(directory, max_length=12)
    return pybeam.load(directory, device="cpu")


def four_objects(translator, lines, **options):
    tokenizer = pybeam.load_tokenizer(translator.path)
    search = pybeam.fixed_beam(4, scoring=pybeam.scoring.power(1.0), **options)
    results = pybeam.Decoder(translator.model, search).decode(tokenizer.encode(lines))
    return search, [
        [(tokenizer.decode(one.tokens), one) for one in result.hypotheses] for result in results
    ]


def test_texts_and_scores_are_those_of_four_objects(translator):
    search, expected = four_objects(translator, LINES, n_best=2)
    found = translator.translate(LINES, search=search)
    assert [[(str(one), one.hypothesis) for one in outputs] for outputs in found] == expected
    assert [[one.score for one in outputs] for outputs in found] == [
        [one.final_score for _, one in outputs] for outputs in expected
    ]


def test_one_text_has_one_answer_and_a_list_has_a_list(translator):
    one = translator.translate(LINES[0])
    assert one == "Jesus wept." and isinstance(one, pybeam.tasks.Output)
    assert translator.translate([LINES[0]]) == [one]
    assert translator.translate((LINES[0],)) == [one]
    assert translator.translate(line for line in LINES[:1]) == [one]
    assert translator.translate([]) == []


def test_n_best_of_two_gives_lists(translator):
    [first, second] = translator.translate(LINES[0], n_best=2)
    assert first == translator.translate(LINES[0]) and first.score > second.score
    assert translator.translate(LINES[:1], n_best=2) == [[first, second]]
    # as the search says, unless the call says otherwise
    several = translator.with_search(pybeam.fixed_beam(4, n_best=3))
    assert len(several.translate(LINES[0])) == 3
    assert isinstance(several.translate(LINES[0], n_best=1), str)
    with pytest.raises(ValueError, match="`n_best` must be at most `width` = 5"):
        translator.translate(LINES[0], n_best=6)


def test_a_text_without_words_stays_empty(translator):
    assert translator.translate("") == "" and translator.translate(" \n") == ""
    assert translator.translate(["", LINES[0]]) == ["", "Jesus wept."]


def test_max_length_of_a_call(translator):
    output = translator.translate(LINES[1], max_length=3)
    assert len(output.hypothesis.tokens) == 3 and not output.hypothesis.ended


def test_an_output_is_a_text_that_pickles(translator):
    output = translator.translate(LINES[0])
    twin = pickle.loads(pickle.dumps(output))
    assert twin == output and twin.hypothesis == output.hypothesis
    assert f"<{output}>" == "<Jesus wept.>"


def test_a_stream_is_what_translate_returns(translator):
    whole = translator.translate(LINES)
    assert list(translator.stream(LINES)) == whole
    assert "".join(translator.stream(LINES[1])) == whole[1]
    greedy = translator.with_search(pybeam.greedy())
    pieces = list(greedy.stream(LINES[1]))
    assert "".join(pieces) == greedy.translate(LINES[1]) and len(pieces) > 3


def test_a_stream_reads_texts_as_they_are_needed(translator):
    narrow = pybeam.load(MODEL, device="cpu", schedule=pybeam.Fifo(1, window=2))
    taken = []

    def lines():
        for line in LINES * 20:
            taken.append(line)
            yield line

    stream = narrow.stream(lines())
    assert next(stream) == translator.translate(LINES[0])
    assert len(taken) < 10
    stream.close()


def test_one_text_of_a_stream_has_one_output(translator):
    with pytest.raises(ValueError, match="gives the parts of one output"):
        list(translator.stream(LINES[0], n_best=2))


def test_a_text_that_fails_harms_no_other(translator):
    lines = [LINES[0], TOO_LONG, LINES[1]]
    with pytest.raises(
        pybeam.DecodeError, match="1 of 3 requests failed; the first is request 1"
    ) as e:
        translator.translate(lines)
    assert [result.error is None for result in e.value.results] == [True, False, True]
    first, error, last = translator.translate(lines, on_error="return")
    assert [first, last] == translator.translate([LINES[0], LINES[1]])
    assert isinstance(error, ValueError) and "must have at most" in str(error)
    with pytest.raises(ValueError, match="must have at most"):
        translator.translate(TOO_LONG)
    stream = translator.stream(lines)
    assert next(stream) == first
    with pytest.raises(ValueError, match="must have at most"):
        next(stream)
    assert list(translator.stream(lines, on_error="return"))[2] == last


def test_a_text_that_cannot_be_encoded_fails_alone(translator, monkeypatch):
    tokenizer = translator.tokenizer
    encode = tokenizer.encode

    def fails(text):
        if text == LINES[1]:
            raise RuntimeError("no such bytes")
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", fails)
    found = translator.translate(LINES, on_error="return")
    assert str(found[1]) == "no such bytes" and found[0] == "Jesus wept." and found[2]
    assert list(translator.stream(iter(LINES), on_error="return"))[2] == found[2]


@pytest.mark.parametrize("texts", [7, None, b"x", [LINES[0], 7], {"text": "x"}])
def test_what_is_no_text_is_refused_at_the_door(translator, texts):
    with pytest.raises(TypeError, match="`texts` must be a text or a list of texts"):
        translator.translate(texts)


def test_wrong_options_are_refused(translator):
    with pytest.raises(ValueError, match="`on_error` must be 'return' or 'raise'"):
        translator.translate(LINES, on_error="ignore")
    for options, error in (
        (dict(n_best=0), ValueError),
        (dict(n_best=6), ValueError),
        (dict(n_best="2"), TypeError),
        (dict(max_length=0), ValueError),
        (dict(max_length="2"), TypeError),
    ):
        # at once, and not for each of the texts
        for call in (translator.translate, translator.stream):
            with pytest.raises(error, match=rf"`{next(iter(options))}` must be"):
                call(LINES, **options)
    with pytest.raises(TypeError, match="nbest"):
        translator.stream(LINES, nbest=2)
    with pytest.raises(ArgumentError, match=r"`target` must be left out.*no language tags"):
        translator.translate(LINES, target="en")


def test_asynchronous_callers_get_the_same(translator):
    async def all_of_them():
        one, several = await asyncio.gather(
            translator.atranslate(LINES[0]), translator.atranslate(LINES, n_best=2)
        )
        pieces = [piece async for piece in translator.astream(LINES[1])]
        listed = [one async for one in translator.astream(iter(LINES))]
        failed = await translator.atranslate([TOO_LONG, LINES[0]], on_error="return")
        return one, several, pieces, listed, failed

    async def lines():
        for line in LINES:
            await asyncio.sleep(0)
            yield line

    async def streamed():
        return [one async for one in translator.astream(lines())]

    one, several, pieces, listed, failed = asyncio.run(all_of_them())
    assert one == translator.translate(LINES[0])
    assert several == translator.translate(LINES, n_best=2)
    assert "".join(pieces) == translator.translate(LINES[1])
    assert listed == translator.translate(LINES) == asyncio.run(streamed())
    assert isinstance(failed[0], ValueError) and failed[1] == one


def interrupted():
    yield LINES[0]
    raise RuntimeError("no more lines")


def test_texts_that_cannot_be_read_on(translator, recwarn):
    for call in (translator.translate, lambda lines: list(translator.stream(lines))):
        with pytest.raises(RuntimeError, match="no more lines"):
            call(interrupted())
    with pytest.raises(RuntimeError, match="no more lines"):
        asyncio.run(translator.atranslate(interrupted()))
    gc.collect()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def test_asynchronous_errors(translator):
    with pytest.raises(pybeam.DecodeError):
        asyncio.run(translator.atranslate([LINES[0], TOO_LONG]))
    with pytest.raises(ValueError, match="must have at most"):
        asyncio.run(translator.atranslate(TOO_LONG))


def test_languages_of_a_call(nllb):
    assert [sorted(names) for names in nllb.languages] == [[*LANGUAGES], [*LANGUAGES]]
    found = {}
    for source, target in (("eng_Latn", "spa_Latn"), ("fra_Latn", "spa_Latn"), (None, "fra_Latn")):
        tokenizer = pybeam.load_tokenizer(nllb.path, source, target)
        [result] = nllb.decoder.decode(tokenizer.encode(["abc"]))
        output = nllb.translate("abc", source=source, target=target)
        assert output.hypothesis == result.hypotheses[0]
        assert output.hypothesis.tokens[0] == tokenizer.prefix[0]
        found[source, target] = output.hypothesis.tokens
    assert len({tuple(tokens) for tokens in found.values()}) > 1


def test_languages_of_load(nllb):
    spanish = pybeam.load(nllb.path, device="cpu", source="fra_Latn", target="spa_Latn")
    expected = nllb.translate("abc", source="fra_Latn", target="spa_Latn")
    assert spanish.translate("abc") == expected
    assert spanish.translate("abc", source="eng_Latn") == nllb.translate("abc", target="spa_Latn")
    assert spanish.tokenizer.prefix == [nllb._texts.of("fra_Latn", "spa_Latn").prefix[0]]


@pytest.mark.parametrize("name", ["source", "target"])
def test_languages_that_are_unknown_or_missing(nllb, name):
    languages = {"source": "eng_Latn", "target": "fra_Latn", name: "xyz"}
    with pytest.raises(
        ArgumentError, match=rf"`{name}` must be one of .*eng_Latn.*'xyz'.*`languages`"
    ):
        nllb.translate("abc", **languages)
    with pytest.raises(ArgumentError, match=r"`target` must be one of .*None"):
        nllb.translate("abc")
    with pytest.raises(ArgumentError, match=rf"`{name}` must be one of"):
        pybeam.load(nllb.path, device="cpu", **languages)
