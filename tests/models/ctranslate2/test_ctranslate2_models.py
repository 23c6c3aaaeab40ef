"""Folders of CTranslate2, beside CTranslate2 itself and the models that they were converted from."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.compat.ctranslate2 import beam_search
from pybeam.limits import FREE
from support.ctranslate2_folders import (
    GENERATORS,
    MAX_LENGTH,
    TRANSLATORS,
    convert,
    convert_whisper,
    tiny_generator,
    tiny_translator,
)
from support.speech_models import random_features, save_tiny_whisper

ctranslate2 = pytest.importorskip("ctranslate2")

# tokens before EOS, so that there are some
LEAST = 3
QUANTISATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int16")


def sources(most: int = 36) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(4, most) for _ in range(n)] for n in (1, 4, 9, 2, 7, 3)]


def found(model, beam_size: int, batch, more=(), *, least: int = LEAST, **options):
    """Return the tokens of the best hypotheses."""
    more = [*more, processors.min_length(least)] if least else more
    if beam_size == 1:
        search = pybeam.greedy(max_length=MAX_LENGTH, processors=more)
    else:
        lengths = dict(max_decoding_length=MAX_LENGTH, min_decoding_length=0)
        search = beam_search(beam_size, **lengths, **options)
        chain = (*more, *search.processors)
        search = dataclasses.replace(search, prefix=FREE, processors=chain)
    results = pybeam.Decoder(model, search).decode(batch)
    assert all(result.error is None for result in results)
    return [result.hypotheses[0].tokens for result in results]


def logits_of(model, source, target, banned=()) -> torch.Tensor:
    """Log-probabilities of given tokens."""
    bans = [processors.suppress_tokens(banned)] if banned else []
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=MAX_LENGTH, processors=bans))
    [result] = decoder.score([source], [target])
    return torch.tensor(result.hypotheses[0].log_probs)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_translator_finds_the_same_tokens(kind, tmp_path):
    network = tiny_translator(kind)
    tokens = convert(network, tmp_path / "ct2")
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32")
    ours = pybeam.load_model(tmp_path / "ct2")
    for beam_size in (1, 5):
        expected = theirs.translate_batch(
            [[tokens[i] for i in source] for source in sources()],
            beam_size=beam_size,
            max_decoding_length=MAX_LENGTH,
            min_decoding_length=LEAST,
        )
        mine = [[tokens[i] for i in line] for line in found(ours, beam_size, sources())]
        assert mine == [one.hypotheses[0] for one in expected]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_finds_the_same_tokens(kind, tmp_path):
    network = tiny_generator(kind)
    tokens = convert(network, tmp_path / "ct2")
    theirs = ctranslate2.Generator(str(tmp_path / "ct2"), compute_type="float32")
    ours = pybeam.load_model(tmp_path / "ct2")
    for beam_size in (1, 5):
        # in a batch, what is longer than the shortest prompt is forced there, and returned
        expected = [
            theirs.generate_batch(
                [[tokens[i] for i in source]],
                beam_size=beam_size,
                max_length=MAX_LENGTH,
                min_length=LEAST,
                include_prompt_in_result=False,
            )[0]
            for source in sources()
        ]
        assert found(ours, beam_size, sources()) == [one.sequences_ids[0] for one in expected]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("kind", ["m2m_100-even", "marian", "t5", "umt5", "qwen3", "gemma3", "phi"])
def test_each_type_of_weights_is_near_the_original(kind, quantisation, tmp_path):
    network = tiny_translator(kind) if kind in TRANSLATORS else tiny_generator(kind)
    network.save_pretrained(tmp_path / "original")
    original = pybeam.load_model(tmp_path / "original", eos_id=network.config.eos_token_id)
    # the converter leaves out the token that Marian starts from
    banned = [network.config.pad_token_id] if kind == "marian" else []
    convert(network, tmp_path / "ct2", quantisation)
    ours = pybeam.load_model(tmp_path / "ct2")
    assert ours.weight_dtype == (torch.int8 if "int8" in quantisation else torch.float32)
    most = {"float32": 1e-4, "float16": 0.02, "int16": 0.1}.get(quantisation, 0.5)
    for source, target in zip(sources(), sources()[::-1], strict=True):
        expected = logits_of(original, source, target, banned)
        torch.testing.assert_close(logits_of(ours, source, target), expected, rtol=0, atol=most)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", ["m2m_100-even", "marian", "qwen3"])
def test_integers_are_taken_over_as_they_are(kind, tmp_path):
    """With "float32" they are the same numbers, and with int8 inputs of layers are rounded, too."""
    network = tiny_translator(kind) if kind in TRANSLATORS else tiny_generator(kind)
    convert(network, tmp_path / "ct2", "int8")
    as_floats = pybeam.load_model(tmp_path / "ct2", dtype="float32")
    as_integers = pybeam.load_model(tmp_path / "ct2")
    assert as_integers.weight_dtype == torch.int8
    stack = as_floats.decoder if hasattr(as_floats, "decoder") else as_floats.stack
    assert as_floats.weight_dtype == torch.float32 and stack.layers
    for source in sources():
        one, other = (logits_of(model, source, [5, 9]) for model in (as_floats, as_integers))
        torch.testing.assert_close(one, other, rtol=0, atol=0.5)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("quantisation", ["float32", "int8"])
def test_a_whisper_finds_the_same_tokens(quantisation, tmp_path):
    save_tiny_whisper(tmp_path / "original")
    convert_whisper(tmp_path / "original", tmp_path / "ct2", quantisation)
    ours = pybeam.load_model(tmp_path / "ct2", dtype="float32")
    theirs = ctranslate2.models.Whisper(str(tmp_path / "ct2"), compute_type="float32")
    batch = [features for features in random_features(5) if len(features) > 1]
    prompt = [ours.start_id, 30, 33, 34]
    # CTranslate2 bans before the softmax, and settings of a folder do as transformers does
    bans = [
        processors.suppress_tokens(ours.settings.suppress_tokens),
        processors.suppress_tokens_at_start(ours.settings.begin_suppress_tokens),
    ]
    ours = ours.without(*ours.settings.names)
    for beam_size in (1, 5):
        requests = [pybeam.Request(features, prefix=prompt[1:]) for features in batch]
        lines = found(ours, beam_size, requests, bans, least=0, length_penalty=0)
        mine = [line[3:] for line in lines]
        expected = [
            theirs.generate(
                ctranslate2.StorageView.from_array(features.T.contiguous().numpy()[None]),
                [prompt],
                beam_size=beam_size,
                length_penalty=0,
                max_length=2 * MAX_LENGTH,
            )[0].sequences_ids[0]
            for features in batch
        ]
        assert mine == expected


def test_whisper_files_say_what_those_of_transformers_say(tmp_path):
    save_tiny_whisper(tmp_path / "original")
    convert_whisper(tmp_path / "original", tmp_path / "ct2")
    own = [pybeam.speech.load_transcription(tmp_path / name, "de") for name in ("original", "ct2")]
    assert own[0].prefix == own[1].prefix
    model = pybeam.load_model(tmp_path / "ct2")
    assert model.settings.suppress_tokens == (5, 11, *range(30, 40))
    assert model.settings.begin_suppress_tokens == (27, 28)
    (tmp_path / "ct2" / "preprocessor_config.json").unlink()
    assert pybeam.speech.load_feature_extractor(tmp_path / "ct2").num_mel_bins == 6
