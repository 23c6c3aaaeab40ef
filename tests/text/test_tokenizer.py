"""`load_tokenizer` gives the ids and texts that transformers gives, from the same files."""

import json
import shutil
import warnings

import pytest
import sentencepiece
import transformers

from pybeam.text.tokenizer import load_tokenizer

EXAMPLE = "examples/models/bible-es-en"
SPM = f"{EXAMPLE}/sentencepiece.model"
TEXTS = (
    "En el principio crió Dios los cielos y la tierra.",
    "Jesús lloró.",
    "¿Dónde está Abel? 7 veces ☃",
    "",
)


@pytest.fixture(scope="module")
def pieces():
    model = sentencepiece.SentencePieceProcessor(model_file=SPM)
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size())]


@pytest.fixture(scope="module")
def vocabulary(pieces):
    return {piece: i for i, (piece, _) in enumerate(pieces)}


def saved(directory, tokenizer, **config):
    """The directory of a model with this tokenizer."""
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 2, **config}))
    return directory


def assert_same_ids(ours, original, texts=TEXTS, kept=lambda token: True):
    """Same ids, same texts; the original may leave tokens in a text that it should not."""
    for text in texts:
        ids = original(text).input_ids
        assert ours.encode(text) == ids
        expected = original.decode([*filter(kept, ids)], skip_special_tokens=True)
        assert ours.decode(ids) == expected.strip()


def test_several_texts_at_once():
    tokenizer = load_tokenizer(EXAMPLE)
    for encode in (tokenizer.encode, tokenizer.encode_target):
        assert encode(list(TEXTS)) == encode(TEXTS) == [encode(text) for text in TEXTS]
        assert encode([]) == []
        for wrong in (b"sea", None, ["sea", 5], [["sea"]], 5):
            with pytest.raises(TypeError, match="`text` must be a text or a list of texts, but "):
                encode(wrong)
    with pytest.raises(TypeError, match=r"token ids of one hypothesis, but hold \[5, 6\]"):
        tokenizer.decode([[5, 6], [7]])
    with pytest.raises(TypeError, match="must be the token ids of one hypothesis, but hold 'a'"):
        tokenizer.decode("a text")


def test_plain_sentencepiece_ids_are_used_as_they_are():
    tokenizer = load_tokenizer(EXAMPLE)
    model = sentencepiece.SentencePieceProcessor(model_file=SPM)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == [*model.encode(text), 2]
        assert tokenizer.decode(ids) == model.decode(model.encode(text))
        assert tokenizer.encode_target(text) == model.encode(text)
    assert tokenizer.prefix == []
    assert tokenizer.decode([2, 10**6]) == ""


@pytest.mark.parametrize("has_list", [False, True])
def test_m2m100(tmp_path, vocabulary, has_list):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(vocabulary))
    original = transformers.M2M100Tokenizer(path, SPM, src_lang="es", tgt_lang="en")
    directory = saved(tmp_path / "model", original, model_type="m2m_100")
    if has_list:
        # as the files on the hub have it
        tags = {"additional_special_tokens": list(original.lang_token_to_id)}
        (directory / "special_tokens_map.json").write_text(json.dumps(tags))
        (directory / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(directory, "es", "en")
    assert_same_ids(tokenizer, original, kept=lambda token: token < len(vocabulary))
    assert tokenizer.prefix == [original.get_lang_id("en")]
    french = load_tokenizer(directory, source_lang="__fr__", target_lang="de")
    assert french.encode("")[0] == original.get_lang_id("fr")
    assert french.prefix == [original.get_lang_id("de")]


def test_marian(tmp_path, vocabulary):
    # Marian's ids are in an order of their own
    ids = {piece: i for i, piece in enumerate(sorted(vocabulary))} | {">>fra<<": len(vocabulary)}
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses
        original = transformers.MarianTokenizer(SPM, SPM, path)
    directory = saved(tmp_path / "model", original, model_type="marian", eos_token_id=ids["</s>"])
    assert_same_ids(load_tokenizer(directory), original)
    french = load_tokenizer(directory, target_lang="fra")
    assert french.encode("Dios") == original(">>fra<<Dios").input_ids
    assert french.prefix == []


def test_marian_with_two_vocabularies(tmp_path, vocabulary):
    size = len(vocabulary)
    target = {piece: size - 1 - i for piece, i in vocabulary.items()}
    for name, ids in (("source", vocabulary), ("target", target)):
        (tmp_path / f"{name}.json").write_text(json.dumps(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = transformers.MarianTokenizer(
            SPM,
            SPM,
            tmp_path / "source.json",
            target_vocab_file=tmp_path / "target.json",
            separate_vocabs=True,
        )
    directory = saved(tmp_path / "model", original, model_type="marian")
    tokenizer = load_tokenizer(directory)
    for text in TEXTS[:2]:
        ids = tokenizer.encode(text)
        assert ids == original(text).input_ids
        assert tokenizer.decode([size - 1 - token for token in ids]) == text
        assert tokenizer.encode_target(text) == [size - 1 - token for token in ids[:-1]]


def test_mbart50(tmp_path, pieces):
    original = transformers.MBart50Tokenizer(vocab=pieces, src_lang="es_XX", tgt_lang="en_XX")
    directory = saved(tmp_path, original, model_type="mbart", decoder_start_token_id=2)
    tokenizer = load_tokenizer(directory)
    assert_same_ids(tokenizer, original)
    assert tokenizer.prefix == [original.convert_tokens_to_ids("en_XX")]
    slovene = load_tokenizer(directory, target_lang="sl_SI")
    assert slovene.prefix == [original.convert_tokens_to_ids("sl_SI")]


def test_mbart25_starts_from_the_language(tmp_path, pieces):
    original = transformers.MBartTokenizer(vocab=pieces, src_lang="es_XX", tgt_lang="en_XX")
    start = original.convert_tokens_to_ids("en_XX")
    directory = saved(tmp_path, original, model_type="mbart", decoder_start_token_id=start)
    tokenizer = load_tokenizer(directory)
    assert_same_ids(tokenizer, original)
    assert tokenizer.prefix == []
    german = original.convert_tokens_to_ids("de_DE")
    with pytest.raises(
        ValueError, match=rf"`target_lang` must .* = {start} .*'de_DE'.* to {german}"
    ):
        load_tokenizer(directory, target_lang="de_DE")


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb(tmp_path, legacy):
    ids = {piece: i for i, piece in enumerate("<s> <pad> </s> <unk> ▁ a b ▁a".split())}
    original = transformers.NllbTokenizer(
        vocab=ids,
        merges=[("▁", "a")],
        src_lang="spa_Latn",
        tgt_lang="eng_Latn",
        legacy_behaviour=legacy,
    )
    directory = saved(tmp_path, original, model_type="m2m_100")
    tokenizer = load_tokenizer(directory, source_lang="fra_Latn", target_lang="deu_Latn")
    original.src_lang = "fra_Latn"
    assert_same_ids(tokenizer, original, texts=("a b ab", "b"))
    assert tokenizer.prefix == [original.convert_tokens_to_ids("deu_Latn")]


def test_bart_puts_a_token_before(tmp_path):
    ids = {piece: i for i, piece in enumerate("<s> <pad> </s> <unk> a b Ġ <mask>".split())}
    original = transformers.BartTokenizer(vocab=ids, merges=[])
    directory = saved(tmp_path, original, model_type="bart", forced_bos_token_id=0)
    tokenizer = load_tokenizer(directory)
    assert_same_ids(tokenizer, original, texts=("a b ab", "b"))
    # what `generate` would force
    assert tokenizer.prefix == [0]


def test_languages_for_a_model_without_tags():
    with pytest.raises(ValueError, match=r"`source_lang` must be left out, .* but is 'es'"):
        load_tokenizer(EXAMPLE, source_lang="es")
    with pytest.raises(ValueError, match=r"`target_lang` must be left out, .* but is 'en'"):
        load_tokenizer(EXAMPLE, target_lang="en")


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("xx", "en", r"`source_lang` .* \(af, am, ar, ast, az, … 100 in all\), but is 'xx'"),
        ("es", "xx", "`target_lang` .* but is 'xx'"),
        (None, "en", "`source_lang` .* but is None"),
        ("es", None, "`target_lang` .* but is None"),
    ],
)
def test_wrong_languages(tmp_path, vocabulary, source, target, message):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(vocabulary))
    original = transformers.M2M100Tokenizer(path, SPM)
    directory = saved(tmp_path / "model", original, model_type="m2m_100")
    without_languages = json.dumps({"language_codes": "m2m100"})
    (directory / "tokenizer_config.json").write_text(without_languages)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(directory, source, target)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none is at .*/nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json, source.spm .*; save one with"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "fsmt"}))
    with pytest.raises(FileNotFoundError, match=r"FSMT's own tokenizer .* give token ids"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json is not a sound tokenizer"),
        ("spm.model", "no model", "spm.model is not a sound SentencePiece model"),
        ("config.json", "{", "config.json must be a JSON file"),
        ("config.json", "[]", "config.json must hold a JSON object"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["sentencepiece.model", "spm.model", "spiece.model"])
def test_a_model_of_sentencepiece_may_have_three_names(tmp_path, name):
    shutil.copy(SPM, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "eos_token_id": 1}))
    text = "En el principio"
    pieces = sentencepiece.SentencePieceProcessor(model_file=SPM)
    assert load_tokenizer(tmp_path).encode(text) == [*pieces.encode(text), 1]


def test_pegasus_has_other_ids_than_its_sentencepiece_model(tmp_path):
    shutil.copy(SPM, tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "pegasus", "eos_token_id": 1}))
    with pytest.raises(FileNotFoundError, match="save one with transformers"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("eos", [None, [2, 3], "</s>"])
def test_eos_must_be_one_id(tmp_path, eos):
    shutil.copy(SPM, tmp_path / "spm.model")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(
        ValueError, match=r"`eos_token_id` .* must be one token id, .* but is .*give"
    ):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path, eos_id=3).encode("En")[-1] == 3


@pytest.mark.parametrize("eos", [None, [7, 2, 3]])
def test_the_tokenizers_own_eos_ends_sources(tmp_path, eos):
    """Where several tokens end a hypothesis, or the model's files name none."""
    shutil.copy(SPM, tmp_path / "spm.model")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    [end] = load_tokenizer(tmp_path).encode("")
    assert end == sentencepiece.SentencePieceProcessor(model_file=SPM).piece_to_id("</s>")
