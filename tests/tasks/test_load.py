"""`load` looks at a folder, takes all that it says, and wraps or refuses what is not built in."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import sys

import pytest
import torch
import transformers
from sentencepiece import SentencePieceProcessor

import pybeam
from pybeam.compat.huggingface import beam_search
from pybeam.limits import SourceLimit
from pybeam.tasks import loading
from pybeam.tasks.search import MARIAN_ROUNDING, folder_fields
from pybeam.tasks.wrapped import WrappedTexts
from support.folder_layouts import change as add
from support.marian_folders import JOINT, write_folder
from support.paths import MODEL, ROOT
from support.text_folders import (
    LANGUAGES,
    change,
    save_chat,
    save_letters,
    save_network,
    save_nllb,
)

LINES = ["abc", "the cat", "q"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bible-es-en", "Translator"),
        ("spoken-verses-en", "WhisperRecognizer"),
        ("spoken-numbers-en", "Recognizer"),
    ],
)
def test_the_object_for_what_a_folder_holds(name, kind):
    if kind == "Recognizer":
        pytest.importorskip("kaldi_native_fbank")
    directory = ROOT / "examples" / "models" / name
    loaded = pybeam.load(directory, device="cpu")
    assert type(loaded) is getattr(pybeam.tasks, kind)
    assert loaded.path == directory and loaded.model is loaded.decoder.model
    assert repr(loaded).startswith(f"{kind}({str(directory)!r}: ")
    assert "parameters, float32 on cpu, a beam of 5" in repr(loaded)
    own = "translate" if kind == "Translator" else "transcribe"
    with pytest.raises(AttributeError, match=f"a {kind} has no `generate`, .*; call `{own}`"):
        loaded.generate("a prompt")
    with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'other'$"):
        loaded.other  # noqa: B018


def test_the_search_is_what_the_folder_asks_for(tmp_path):
    options = dict(num_beams=3, length_penalty=0.6, early_stopping=True)
    save_nllb(tmp_path, max_length=12, **options)
    search = pybeam.load(tmp_path, device="cpu", target="eng_Latn").decoder.algorithm
    expected = beam_search(3, max_new_tokens=11, length_penalty=0.6, early_stopping=True)
    assert (search.width, search.scoring, search.stop) == (3, expected.scoring, expected.stop)
    assert search.max_length == SourceLimit(0.0, 11)


def test_a_folder_that_names_no_beams_is_searched_as_on_the_command_line(tmp_path):
    plain = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
    assert pybeam.load(MODEL, device="cpu").decoder.algorithm == plain
    save_nllb(tmp_path, length_penalty=0.6, max_length=12)
    search = pybeam.load(tmp_path, device="cpu", target="eng_Latn").decoder.algorithm
    limit = SourceLimit(0.0, 11)
    assert search == pybeam.fixed_beam(5, scoring=pybeam.scoring.power(0.6), max_length=limit)


@pytest.mark.parametrize(
    "options",
    [dict(num_beams="many"), dict(max_new_tokens=0.5), dict(max_length="12"), dict(max_length=-3)],
)
def test_an_option_that_generate_could_not_have(options, tmp_path):
    for save in (save_nllb, save_chat):
        directory = tmp_path / save.__name__
        directory.mkdir()
        save(directory, **options)
        with pytest.raises(ValueError, match=r"`.*_.*` must be.*generation_config\.json"):
            pybeam.load(directory, device="cpu")


def test_outputs_are_those_of_generate(tmp_path):
    save_nllb(tmp_path, num_beams=3, length_penalty=0.6, max_length=12, forced_bos_token_id=44)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    translator = pybeam.load(tmp_path, device="cpu")
    for line in LINES:
        ids = torch.tensor([translator.tokenizer.encode(line)])
        [expected] = network.generate(ids).tolist()
        hypothesis = translator.translate(line).hypothesis
        ends = [] if hypothesis.eos_id is None else [hypothesis.eos_id]
        assert [2, *hypothesis.tokens, *ends] == expected


@pytest.mark.slow
def test_a_folder_of_marian_is_searched_as_its_settings_say(tmp_path, caplog):
    pieces = MODEL / "sentencepiece.model"
    size = SentencePieceProcessor(model_file=str(pieces)).get_piece_size()
    write_folder(tmp_path, 1, **{**JOINT, "dim-vocabs": [size, size]})
    shutil.copy(pieces, tmp_path / "vocab.spm")
    settings = tmp_path / "decoder.yml"
    named = (
        settings.read_text().replace("source.yml", "vocab.spm").replace("target.yml", "vocab.spm")
    )
    settings.write_text(named)
    marian = dict(max_length=SourceLimit(3.0, MARIAN_ROUNDING), ended_only=False)
    expected = pybeam.shrinking_beam(6, scoring=pybeam.scoring.power(1.0), **marian)
    loaded = pybeam.load(tmp_path, device="cpu")
    assert loaded.decoder.algorithm == expected and "a beam of 6" in repr(loaded)
    assert isinstance(loaded.translate("Jesús lloró."), str)

    def search(**changes):
        kept = named[: named.index("beam-size")]
        lines = [f"{name.replace('_', '-')}: {value}\n" for name, value in changes.items()]
        settings.write_text("".join([kept, *lines]))
        return pybeam.load(tmp_path, device="cpu").decoder.algorithm

    # the unknown word is banned by the model's own settings
    [ban] = search().processors
    plain = pybeam.shrinking_beam(12, processors=[ban], **marian)
    assert search() == plain
    penalised = dataclasses.replace(plain, scoring=pybeam.scoring.reward(-0.5))
    assert search(word_penalty=0.5) == penalised
    # it moves all scores alike
    both = dataclasses.replace(plain, scoring=pybeam.scoring.power(1.0))
    assert search(word_penalty=0.5, normalize=1) == both
    # rounded up, and a product that is whole but for float64's rounding is whole
    limit = search(max_length_factor=1.1).max_length
    assert [limit.tokens(num) for num in (1, 10, 11, 50)] == [2, 11, 13, 55]
    longer = dataclasses.replace(plain, max_length=SourceLimit(1.5, MARIAN_ROUNDING))
    with caplog.at_level(logging.INFO, logger="pybeam.tasks"):
        assert search(max_length_factor=1.5, shortlist="[lex.bin]", max_length=9) == longer
    for name in ("shortlist", "max-length"):
        assert f"`{name}` is left out" in caplog.text
    for message, changes in {
        "`normalize` in .* must be 0 or 1 beside": dict(word_penalty=0.5, normalize=0.6),
        "`normalize` in .* must be a number, but is 'x'": dict(normalize="x"),
        "`beam-size` in .* must be an integer from 1 to 4096": dict(beam_size=0),
        "`ratio` must be .*decoder.yml": dict(max_length_factor=-1),
    }.items():
        with pytest.raises(ValueError, match=message):
            search(**changes)


def test_an_older_folder_has_its_options_in_its_config(tmp_path):
    save_nllb(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    add(tmp_path / "config.json", num_beams=2, max_length=9)
    search = pybeam.load(tmp_path, device="cpu", target="eng_Latn").decoder.algorithm
    assert search.width == 2 and search.max_length == SourceLimit(0.0, 8)


def test_options_of_the_language_model_within(tmp_path):
    """The whole model's come first, as transformers takes them where there is no generation_config.json."""
    text = dict(num_beams=3, eos_token_id=5, pad_token_id=1)
    config = dict(model_type="llava", eos_token_id=[7, 8], text_config=text, vision_config={})
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.GenerationConfig.from_model_config(transformers.LlavaConfig(**config))
    _, fields = folder_fields(tmp_path)
    assert fields["num_beams"] == 3
    assert fields["eos_token_id"] == theirs.eos_token_id == [7, 8]
    assert fields["pad_token_id"] == theirs.pad_token_id == 1


def test_sampling_is_left_out_and_said(tmp_path, caplog):
    save_chat(tmp_path, do_sample=True)
    with caplog.at_level(logging.INFO, logger="pybeam.tasks"):
        assert pybeam.load(tmp_path, device="cpu").decoder.algorithm.width == 1
    assert [r.getMessage() for r in caplog.records if "`do_sample` is left out" in r.getMessage()]


def test_a_limit_beyond_the_positions_ends_there(tmp_path):
    save_nllb(tmp_path, max_length=1000)
    translator = pybeam.load(tmp_path, device="cpu", target="eng_Latn")
    assert len(translator.translate("abc").hypothesis.tokens) <= 32


def test_another_eos(tmp_path):
    save_chat(tmp_path, max_new_tokens=6)
    change(tmp_path / "generation_config.json", eos_token_id=None)
    change(tmp_path / "config.json", eos_token_id=None)
    with pytest.raises(ValueError, match="eos_id"):
        pybeam.load(tmp_path, device="cpu")
    assert pybeam.load(tmp_path, device="cpu", eos_id=[7, 9]).model.eos_ids == (7, 9)


def test_sources_of_a_folder_without_eos_end_in_the_one_that_is_given(tmp_path):
    save_nllb(tmp_path, max_length=12)
    expected = pybeam.load(tmp_path, device="cpu", target="fra_Latn").translate(LINES)
    change(tmp_path / "generation_config.json", eos_token_id=None)
    change(tmp_path / "config.json", eos_token_id=None)
    change(tmp_path / "tokenizer_config.json", eos_token=None)
    translator = pybeam.load(tmp_path, device="cpu", target="fra_Latn", eos_id=2)
    assert translator.tokenizer.encode("abc")[-1] == 2
    assert translator.translate(LINES) == expected


def test_several_folders_make_an_ensemble():
    twins = pybeam.load([MODEL, MODEL], device="cpu")
    assert twins.translate("Jesús lloró.") == "Jesus wept."
    assert "Ensemble" in repr(twins)


def test_dtype_and_schedule():
    loaded = pybeam.load(MODEL, device="cpu", dtype="int8", schedule=pybeam.Batch(3))
    assert loaded.decoder.schedule == pybeam.Batch(3) and "int8 on cpu" in repr(loaded)


@pytest.mark.parametrize(("kind", "name"), [("blenderbot", "Translator"), ("gptoss", "Generator")])
def test_what_is_not_built_in_is_wrapped_and_said(kind, name, tmp_path, caplog):
    network = save_network(tmp_path, kind).eval()
    search = beam_search(3, max_new_tokens=8)
    with caplog.at_level(logging.INFO, logger="pybeam.tasks"):
        loaded = pybeam.load(tmp_path, device="cpu", search=search)
    [said] = [one.getMessage() for one in caplog.records if one.name == "pybeam.tasks"]
    assert "pybeam wraps the network" in said and "`model_type`" in said
    assert type(loaded) is getattr(pybeam.tasks, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    answer = loaded.translate if name == "Translator" else loaded.generate
    for line, output in zip(LINES, answer(LINES), strict=True):
        ids = torch.tensor([tokenizer(line).input_ids])
        expected = network.generate(ids, num_beams=3, max_new_tokens=8)[0].tolist()
        # without the start token or the prompt, and without EOS
        expected = expected[1 if name == "Translator" else ids.shape[1] :]
        tokens = output.hypothesis.tokens
        assert tokens == expected[: len(tokens)] and not {*expected[len(tokens) :]} - {1, 2}


def test_a_config_that_the_built_in_network_lacks_is_wrapped(tmp_path, caplog):
    save_chat(tmp_path, "llama", max_new_tokens=8)
    plain = pybeam.load(tmp_path, device="cpu").generate(LINES)
    problem = ValueError("`x` in config.json asks for another network")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO, "pybeam.tasks"):
        patch.setattr(loading, "check_config", lambda *_: (_ for _ in ()).throw(problem))
        wrapped = pybeam.load(tmp_path, device="cpu")
    assert "asks for another network" in caplog.text
    assert type(wrapped.model).__name__ == "HuggingFaceModel"
    assert wrapped.generate(LINES) == plain


def test_weights_must_be_complete(tmp_path):
    from safetensors.torch import load_file, save_file

    save_network(tmp_path, "blenderbot")
    tensors = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("fc1.weight"))
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"fc1\.weight` is missing in the weights"):
        pybeam.load(tmp_path, device="cpu")


def test_what_nobody_can_load_is_refused_with_the_reason(tmp_path, monkeypatch):
    save_network(tmp_path, "blenderbot")
    with pytest.raises(ValueError, match="`dtype` must be 'auto' or one of float32"):
        pybeam.load(tmp_path, device="cpu", dtype="int8")
    change(tmp_path / "config.json", architectures=["Nobody"])
    with pytest.raises(
        ValueError, match=r"not built in \(.*\), and transformers .* has no class 'Nobody'"
    ):
        pybeam.load(tmp_path, device="cpu")


def test_a_config_that_is_wrong_is_refused_with_the_reason(tmp_path, monkeypatch):
    save_nllb(tmp_path)
    change(tmp_path / "config.json", d_model="many")
    reason = r"\(`d_model` in .* must be .*'many'\), and transformers"
    with pytest.raises(ValueError, match=f"{reason} cannot load it: "):
        pybeam.load(tmp_path, device="cpu")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=f"{reason} 5.* is needed, but is not installed: `pip"):
        pybeam.load(tmp_path, device="cpu")


def test_languages_of_a_tokenizer_of_transformers(tmp_path):
    save_letters(
        tmp_path, LANGUAGES, tokenizer_class="NllbTokenizer", extra_special_tokens=[*LANGUAGES]
    )
    (tmp_path / "config.json").write_text('{"model_type": "nllb-moe"}')
    texts = WrappedTexts(tmp_path)
    assert texts.languages == ([*LANGUAGES], [*LANGUAGES])
    tokenizer = texts.of("fra_Latn", "spa_Latn")
    assert tokenizer.prefix == [44] and tokenizer.encode("a")[0] == 43
    # a letter of the vocabulary
    for pair in ((None, "a"), ("a", None), (None, "</s>")):
        with pytest.raises(ValueError, match="must be one of the languages of"):
            texts.of(*pair)


def test_a_network_that_cannot_be_searched_is_refused_with_the_reason(tmp_path):
    config = transformers.BertConfig(
        vocab_size=45, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    save_letters(tmp_path)
    with pytest.raises(ValueError, match="BertLMHeadModel cannot be searched by pybeam"):
        pybeam.load(tmp_path, device="cpu")


def test_a_name_of_the_hub_becomes_a_folder(monkeypatch):
    asked = []

    def fetch(name, **options):
        asked.append((name, options))
        return MODEL

    monkeypatch.setattr(loading, "fetch", fetch)
    options = dict(revision="main", token="t", cache_dir="c", offline=True, progress=False)
    loaded = pybeam.load("owner/name", device="cpu", **options)
    assert asked == [("owner/name", options)] and loaded.path == MODEL
    assert repr(loaded).startswith("Translator('owner/name': ")


def test_names_of_other_systems_are_answered_with_ours():
    with pytest.raises(TypeError, match="Did you mean `dtype"):
        pybeam.load(MODEL, compute_type="int8")
    with pytest.raises(TypeError, match=r"`num_beams` is no option of .*translate"):
        pybeam.load(MODEL, device="cpu").translate("x", num_beams=3)


def test_a_search_that_is_none_is_named_as_it_was_given():
    with pytest.raises(TypeError, match=r"`search` must be one such as .*, but is 'beam'"):
        pybeam.load("./absent", search="beam")
    with pytest.raises(TypeError, match=r"`search` must be one such as .*, but is 'beam'"):
        pybeam.load(MODEL, device="cpu").translate("x", search="beam")


def test_what_stands_for_a_model_names_the_part_that_does():
    model = pybeam.load(MODEL, device="cpu")
    with pytest.raises(TypeError, match="; give its attribute `model`"):
        pybeam.Decoder(model, pybeam.greedy())
    with pytest.raises(TypeError, match="; give its attribute `decoder`"):
        pybeam.Service(model)


def test_wrong_names():
    with pytest.raises(ValueError, match="`name` must be a folder or a name on the hub"):
        pybeam.load([])
    for name in (None, 5, b"owner/name", [MODEL, None]):
        with pytest.raises(TypeError, match="`name` must be a folder, a name on the hub, or a li"):
            pybeam.load(name)
