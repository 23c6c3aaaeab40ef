"""Models choose themselves by languages, those of their files or of their names."""

import json
import pickle
import shutil

import pytest
import sentencepiece

import pybeam
from pybeam.server.errors import APIError
from pybeam.server.models import Languages, ServedModel, ServedModels, load_tokenizers
from support.paths import MODEL
from support.server_app import decoder, run, served

LINE = "Jesús lloró."


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """The example model as an M2M100 that knows three languages, whose tags are its last pieces."""
    directory = tmp_path_factory.mktemp("m2m100")
    for name in ("config.json", "generation_config.json"):
        shutil.copy(MODEL / name, directory)
    shutil.copy(MODEL / "sentencepiece.model", directory / "sentencepiece.bpe.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "sentencepiece.model"))
    size = model.get_piece_size()
    pieces = [model.id_to_piece(i) for i in range(size - 3)] + ["__es__", "__en__", "__fr__"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    return ServedModel("many", str(directory), decoder(), load_tokenizers(str(directory)))


def test_languages_of_the_files(tagged):
    assert tagged.languages == Languages(("es", "en", "fr"), ("es", "en", "fr"))
    tokenizer = tagged.tokenizer("es", "fr")
    last = decoder().model.vocab_size - 1
    assert tokenizer.encode(LINE)[0] == last - 2
    assert tokenizer.prefix == [last]
    assert tagged.tokenizer("es", "fr") is tokenizer
    with pytest.raises(APIError, match="'de'") as caught:
        tagged.tokenizer("de", "fr")
    assert (caught.value.status, caught.value.field) == (422, "source_lang")
    with pytest.raises(APIError, match="must be one of the languages") as caught:
        tagged.tokenizer("es", None)
    assert caught.value.field == "target_lang"


def test_a_request_finds_the_model_that_takes_its_languages(tagged):
    models = ServedModels({"es-en": served(), "many": tagged})
    assert models.pick(None, "es", "en").name == "es-en"
    assert models.pick(None).name == "es-en"
    assert models.pick(None, "es", "fr").name == "many"
    assert models.pick("many", "es", "en").name == "many"
    for source, target in (("es", "de"), ("de", "en"), ("auto", "en")):
        with pytest.raises(APIError) as caught:
            models.pick(None, source, target)
        assert caught.value.status == 400
    assert models.targets() == {"en": ["es", "fr"], "es": ["en", "fr"], "fr": ["en", "es"]}


def test_the_name_of_a_model_may_have_slashes():
    async def test(client):
        return (await client.get("/v1/models/biblical/es-en")).json()

    found = run(test, model=served("biblical/es-en"))
    assert (found["id"], found["input"], found["width"]) == ("biblical/es-en", "text", 5)


def test_results_are_those_of_the_library_with_tags(tagged):
    async def test(client):
        body = {"text": LINE, "source_lang": "es", "target_lang": "fr"}
        return (await client.post("/v1/translations", json=body)).json()["translations"][0]

    found = run(test, model=tagged)
    tokenizer = pybeam.load_tokenizer(tagged.directory, "es", "fr")
    request = pybeam.Request(tokenizer.encode(LINE), tokenizer.prefix)
    [best] = decoder().decode([request])[0].hypotheses
    assert (found["text"], found["score"]) == (tokenizer.decode(best.tokens), best.score)


def test_a_target_language_reaches_the_decoder(tagged):
    """What README says: `decode(tokenizer.encode(lines))`. It holds for parts of sources too."""
    tokenizer = pybeam.load_tokenizer(tagged.directory, "es", "fr")
    sources = tokenizer.encode([LINE, "Yo soy la luz del mundo."])
    sources.append(pickle.loads(pickle.dumps(sources[0][:3] + sources[0][-1:])))
    found = decoder().decode(sources)
    assert [one.hypotheses[0].tokens[:1] for one in found] == [tokenizer.prefix] * 3
    expected = decoder().decode([pybeam.Request(list(one), tokenizer.prefix) for one in sources])
    assert [one.hypotheses for one in found] == [one.hypotheses for one in expected]
    plain = pybeam.Request(sources[0], prefix=[])
    assert (
        decoder().decode([plain])[0].hypotheses
        == decoder().decode([list(sources[0])])[0].hypotheses
    )


def test_a_tag_counts_as_generate_counts_it(tagged):
    """As a token that the search generates in the recipe of transformers, and nowhere in others."""
    tokenizer = pybeam.load_tokenizer(tagged.directory, "es", "fr")
    source, model = tokenizer.encode(LINE), decoder().model
    search = pybeam.compat.huggingface.beam_search(3, max_new_tokens=9)
    forced = pybeam.compat.huggingface.beam_search(
        3, max_new_tokens=9, forced_bos_token_id=tokenizer.prefix[0]
    )
    [own] = pybeam.Decoder(model, search).decode([source])
    [first] = pybeam.Decoder(model, forced).decode([list(source)])
    assert own.hypotheses[0].tokens == first.hypotheses[0].tokens
    assert own.hypotheses[0].final_score == pytest.approx(first.hypotheses[0].final_score)
    [plain] = pybeam.Decoder(model, search).decode([pybeam.Request(source, tokenizer.prefix)])
    assert plain.hypotheses[0].final_score < own.hypotheses[0].final_score


@pytest.mark.slow
def test_a_model_without_a_tokenizer_takes_ids(tmp_path):
    shutil.copy(MODEL / "config.json", tmp_path)
    assert load_tokenizers(str(tmp_path)) is None
    model = ServedModel("ids", str(tmp_path), decoder(), None)

    async def test(client):
        answer = await client.post("/v1/translations", json={"text": LINE})
        assert answer.status_code == 422 and "send token ids" in answer.text
        answer = await client.post("/v1/decode", json={"source": [5, 6, 7, 2]})
        return answer.json()["hypotheses"][0]

    found = run(test, model=model)
    [best] = decoder().decode([[5, 6, 7, 2]])[0].hypotheses
    assert (found["tokens"], found["text"]) == (best.tokens, "")
