"""Whisper as a built-in model beside transformers' own."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import pybeam
from pybeam import backends
from pybeam.cli import main
from pybeam.models.transformer.model import TransformerSession
from pybeam.models.transformer.sources import SharedFeatures
from pybeam.models.transformer.speech import SpeechTransformer
from pybeam.speech import (
    Transcription,
    WhisperFeatureExtractor,
    load_feature_extractor,
    load_transcription,
    read_wav,
)
from support.device_loop import assert_alike
from support.session_driver import straight_line
from support.speech_models import (
    WHISPER_GENERATION,
    random_features,
    save_tiny_whisper,
    tone,
    write_wav,
)

SOURCES = random_features(6, seed=3)  # all lengths, odd ones too


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    return directory, save_tiny_whisper(directory)


@pytest.fixture
def model(saved, device) -> SpeechTransformer:
    return pybeam.load_model(saved[0], device=device)


@contextmanager
def shortened(original, num_positions: int):
    """transformers insists on as many frames as there are positions: a model that has fewer of them."""
    encoder, config = original.model.encoder, original.config
    table, most = encoder.embed_positions, config.max_source_positions
    encoder.embed_positions = nn.Embedding.from_pretrained(table.weight[:num_positions])
    config.max_source_positions = num_positions
    yield original
    encoder.embed_positions, config.max_source_positions = table, most


@torch.inference_mode()
def test_logits_are_the_originals(saved, model, backend):
    """Encoder states and logits step by step; of a full source, and of shorter ones."""
    assert type(model) is SpeechTransformer
    assert (model.max_positions, model.max_source_positions, model.start_id) == (40, 50, 29)
    session = model.session(backends.load(backend))
    tokens = [model.start_id, 7, 38, 18, 0, 5]
    for num in (2, 14, 100):
        source = torch.randn(num, 6, generator=torch.Generator().manual_seed(num))
        with shortened(saved[1], num // 2) as original:
            out = original(source.t()[None], decoder_input_ids=torch.tensor([tokens]))
        state = session.encoder_states([source]).cpu()
        torch.testing.assert_close(state, out.encoder_last_hidden_state[0], rtol=1e-5, atol=1e-5)
        ours = straight_line(model, backend, source, tokens)
        scale = float(out.logits.abs().max())
        torch.testing.assert_close(ours, out.logits[0], rtol=0, atol=1e-5 * scale)


def test_scores_do_not_depend_on_the_batch(saved, model, device):
    asked = load_transcription(saved[0], "en")
    search = pybeam.fixed_beam(4, n_best=4, max_length=10, processors=asked.processors)
    requests = [pybeam.Request(source, prefix=asked.prefix) for source in SOURCES]
    together = pybeam.Decoder(model, search, pybeam.Streaming(4, row_budget=9)).decode(requests)
    alone = [pybeam.Decoder(model, search).decode([one])[0] for one in requests]
    native = backends.resolve("auto", device)
    is_exact = native.__name__.endswith("native") and native.isa() != "generic"
    assert {h.ended for result in together for h in result.hypotheses} == {True, False}
    for ours, expected in zip(together, alone, strict=True):
        assert [h.tokens for h in ours.hypotheses] == [h.tokens for h in expected.hypotheses]
        scores = [[h.score for h in result.hypotheses] for result in (ours, expected)]
        assert scores[0] == (scores[1] if is_exact else pytest.approx(scores[1], rel=1e-5))


def test_files_that_contradict_the_config(saved, tmp_path):
    weights = load_file(saved[0] / "model.safetensors")
    config = json.loads((saved[0] / "config.json").read_text())
    path = tmp_path / "config.json"

    def load(change, extra=()):
        path.write_text(json.dumps(config | change))
        save_file({**weights, **dict(extra)}, tmp_path / "model.safetensors")
        return pybeam.load_model(tmp_path)

    with pytest.raises(ValueError, match=r"conv1.weight.* must be \[24, 7, 3\]"):
        load({"num_mel_bins": 7})
    with pytest.raises(ValueError, match=r"embed_positions.weight.* must be \[51, 24\]"):
        load({"max_source_positions": 51})
    name = "model.encoder.layers.0.self_attn.k_proj.bias"
    with pytest.raises(ValueError, match=r"k_proj.bias.*is not part of this model"):
        load({}, {name: torch.zeros(24)})
    # transformers reads this and scales nothing
    assert load({"scale_embedding": True}).decoder.embedding_scale == 1
    with pytest.raises(ValueError, match=r"at most 50 positions.*101 frames become 51"):
        pybeam.load_model(saved[0]).check(torch.zeros(101, 6))


@pytest.mark.parametrize("size", [80, 128])
def test_features_are_those_of_transformers(size, tmp_path):
    """The features of a sound, of silence, of a full recording, from either file that transformers writes."""
    original = transformers.WhisperFeatureExtractor(feature_size=size)
    original.save_pretrained(tmp_path)
    if size == 128:
        path = tmp_path / "preprocessor_config.json"
        content = {"feature_extractor": json.loads(path.read_text())}
        (tmp_path / "processor_config.json").write_text(json.dumps(content))
        path.unlink()
    extract = load_feature_extractor(tmp_path)
    assert (extract.num_mel_bins, extract.sampling_rate) == (size, 16000)
    for samples in (tone(9001, seed=1), np.zeros(500), tone(480000, seed=2)):
        samples = samples.astype(np.float32) / 2**15
        expected = original(samples, sampling_rate=16000, return_tensors="pt").input_features[0]
        found = extract(torch.from_numpy(samples))
        assert found.shape == (3000, size) and found.dtype == torch.float32
        torch.testing.assert_close(found.t(), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"at most 30 s .480000 samples.*31.0 s; cut it: `ffmpeg"):
        extract(torch.zeros(496000))


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_same_as_generate(saved, task):
    """Whisper's own `generate`, with the recipe of its beam search, and greedily."""
    directory, original = saved
    features = torch.randn(3, 100, 6, generator=torch.Generator().manual_seed(5))
    asked = load_transcription(directory, "de", task)
    requests = [pybeam.Request(source, prefix=asked.prefix) for source in features]
    recipe = pybeam.compat.huggingface.beam_search(5, max_new_tokens=10)
    has_ended = set()
    for search, num_beams in ((recipe, 5), (pybeam.greedy(max_length=10), 1)):
        expected = original.generate(
            features.transpose(1, 2),
            language="de",
            task=task,
            num_beams=num_beams,
            max_new_tokens=10,
            return_dict_in_generate=True,
            output_scores=True,
        )
        search = replace(search, processors=asked.processors)
        results = pybeam.Decoder(pybeam.load_model(directory), search).decode(requests)
        for i, (line, result) in enumerate(zip(expected.sequences.tolist(), results, strict=True)):
            assert line[:4] == [29, *asked.prefix]
            best = result.hypotheses[0]
            has_ended.add(best.ended)
            ours = [29, *best.tokens, *[28] * best.ended]
            assert line == ours + [28] * (len(line) - len(ours))
            if num_beams > 1:
                score = float(expected.sequences_scores[i])
                assert best.final_score == pytest.approx(score, abs=1e-4)
    assert has_ended == {True, False}


def test_text_has_no_special_tokens_and_timestamps(saved):
    tokenizer = pybeam.load_tokenizer(saved[0])
    assert tokenizer.encode_target("ab é") == [0, 1, 27, 25, 26]
    ids = [30, 33, 34, 35, 27, 7, 8, 37, 27, 25, 26, 39, 28]
    assert tokenizer.decode(ids) == "hi é" and tokenizer.prefix == []


@pytest.mark.parametrize(
    ("asked", "change", "expected"),
    [
        (("en",), {}, (30, 33, 34)),
        (("<|de|>", "translate"), {}, (31, 32, 34)),
        ((), {"language": "de", "task": "translate"}, (31, 32, 34)),
        ((), {"is_multilingual": False}, (34,)),
        ((), {}, r"`language` must be one.* \(en, de\), but is None"),
        (("fr",), {}, "but is 'fr'"),
        (("en", "sing"), {}, r"`task` must be one.*translate, transcribe.*'sing'"),
        (("en",), {"is_multilingual": False}, r"`language` must be left out.*English.*'en'"),
        ((), {"lang_to_id": None}, r"`lang_to_id` is missing.*current release"),
        ((), {"no_timestamps_token_id": "34"}, r"`no_timestamps_token_id`.*integer"),
        (("en",), {"suppress_tokens": ["a"]}, r"`suppress_tokens` in .*token ids"),
    ],
)
def test_prefix_and_processors(tmp_path, asked, change, expected):
    (tmp_path / "config.json").write_text('{"model_type": "whisper", "suppress_tokens": [1]}')
    content = json.dumps(WHISPER_GENERATION | change)
    (tmp_path / "generation_config.json").write_text(content)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            load_transcription(tmp_path, *asked)
        return
    found = load_transcription(tmp_path, *asked)
    assert found.prefix == expected
    names = "suppress_tokens", "begin_suppress_tokens"
    assert [list(one.tokens) for one in found.processors] == [WHISPER_GENERATION[n] for n in names]


def test_other_models_are_asked_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "speech_to_text"}')
    assert load_transcription(tmp_path) == Transcription()
    with pytest.raises(
        ValueError, match=r"`task` must be left out.*not a Whisper model.*'translate'"
    ):
        load_transcription(tmp_path, task="translate")


def test_command_line(saved, tmp_path, capfd):
    """Hypotheses of the search, and not transcripts, which need no language and have any length."""
    paths = [tmp_path / f"{i}.wav" for i in range(3)]
    for i, path in enumerate(paths):
        write_wav(path, tone(17000 if i == 1 else 5000 * (i + 1), seed=i), 16000)
    command = [
        "transcribe",
        "--model",
        str(saved[0]),
        "--quiet",
        "--width=4",
        "--max-length=8",
        "--json",
    ]
    assert main([*command, "--language=de", "--task=translate", *map(str, paths)]) == 1
    output = capfd.readouterr()
    assert "error: file 2: " in output.err and "at most 1 s" in output.err
    asked = load_transcription(saved[0], "de", "translate")
    scoring = pybeam.scoring.power(1.0)  # the command line's
    search = pybeam.fixed_beam(4, max_length=8, processors=asked.processors, scoring=scoring)
    extract, tokenizer = load_feature_extractor(saved[0]), pybeam.load_tokenizer(saved[0])
    sounds = [extract(read_wav(path, 16000)) for path in (paths[0], paths[2])]
    requests = [pybeam.Request(sound, prefix=asked.prefix) for sound in sounds]
    first, last = pybeam.Decoder(pybeam.load_model(saved[0]), search).decode(requests)
    texts = [tokenizer.decode(result.hypotheses[0].tokens) for result in (first, last)]
    records = [json.loads(line)["hypotheses"] for line in output.out.splitlines()]
    found = [record[0]["text"] if record else "" for record in records]
    assert all(texts) and found == [texts[0], "", texts[1]]
    assert main([*command, str(paths[0])]) == 1
    assert "--language must be one" in capfd.readouterr().err


def test_features_that_are_shared_are_encoded_once(saved, model, monkeypatch):
    """Requests of one recording get what each gets alone, beside features that are not shared."""
    encoded, states = [], TransformerSession.encoder_states

    def counted(self, sources):
        encoded.extend(sources)
        return states(self, sources)

    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=9), pybeam.Fifo(3))
    prefixes = [[30, 33, 34], [31, 33, 34], [31, 32, 34]]
    expected = [
        decoder.decode([pybeam.Request(source, prefix=prefix)])[0]
        for source in SOURCES
        for prefix in prefixes
    ]
    monkeypatch.setattr(TransformerSession, "encoder_states", counted)
    shared = [SharedFeatures(source) if i % 2 else source for i, source in enumerate(SOURCES)]
    requests = [pybeam.Request(one, prefix=prefix) for one in shared for prefix in prefixes]

    def assert_same(found, alone):
        assert_alike(found, alone)
        # to the bit, but on a GPU, where products of other sizes round differently
        if model.device.type == "cpu":
            assert [one.hypotheses for one in found] == [one.hypotheses for one in alone]

    assert_same(decoder.decode(requests), expected)
    num_shared = len(SOURCES) // 2
    assert len(encoded) == num_shared + 3 * (len(SOURCES) - num_shared)
    encoded.clear()
    assert_same(decoder.decode(requests[3:6]), expected[3:6])
    assert not encoded


def test_features_of_long_recordings_are_those_of_transformers():
    """Frame by frame, but for the last ones, which see the end mirrored there and silence here."""
    original = transformers.WhisperFeatureExtractor()
    extract = WhisperFeatureExtractor()
    samples = tone(16000 * 65 + 77, seed=3).astype(np.float32) / 2**15
    expected = original(
        samples, sampling_rate=16000, truncation=False, padding=False, return_tensors="np"
    ).input_features[0]
    found = extract.recording(torch.from_numpy(samples))
    assert found.shape == (6500, 80)
    torch.testing.assert_close(
        found[:-3].t(), torch.from_numpy(expected)[:, :6497], rtol=0, atol=1e-5
    )
    # a short one is what it is at the beginning of a window filled with silence
    short = torch.from_numpy(samples[:16000])
    torch.testing.assert_close(extract.recording(short), extract(short)[:100], rtol=0, atol=1e-5)
