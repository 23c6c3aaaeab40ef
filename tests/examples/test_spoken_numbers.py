"""The example recogniser: the example of the docs, the seed's search on a trained model, word errors."""

import json
import shutil

import pytest
import torch

import pybeam
from examples.speech.spoken_numbers import recordings, speak
from pybeam.speech import load_feature_extractor, read_wav
from support.paths import ROOT
from support.seed_beam_search import DenseSpeech, batch_beam_search

MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
SOUNDS = {"first.wav": "four zero seven", "second.wav": "nine two"}

pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")


def features_of(name: str) -> torch.Tensor:
    extract = load_feature_extractor(MODEL)
    return extract(read_wav(ROOT / "examples" / "speech" / name, extract.sampling_rate))


@torch.inference_mode()
def test_the_seed_finds_the_same_on_a_trained_model(device):
    """n-best with smoothing, EOS penalty and GNMT normalisation, of recordings of two lengths."""
    options = dict(
        beam_size=5, nbest=4, softmax_smoothing=1.25, eos_penalty=0.9, length_penalty=0.6
    )
    config = json.loads((MODEL / "config.json").read_text())
    dense = DenseSpeech.load(MODEL, config)
    sources = [features_of(name) for name in SOUNDS]
    search = pybeam.compat.fireredasr.beam_search(**options)
    results = pybeam.Decoder(pybeam.load_model(MODEL, device=device), search).decode(sources)
    for source, result in zip(sources, results, strict=True):
        (expected,) = batch_beam_search(dense, [source], **options)
        assert [h.tokens for h in result.hypotheses] == [tokens for tokens, _ in expected]
        scores = [h.final_score for h in result.hypotheses]
        assert scores == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs `apt-get install espeak-ng`")
def test_word_errors_on_synthesised_numbers():
    """Voices that were not heard in training, moderate noise."""
    jiwer = pytest.importorskip("jiwer", reason="needs `pip install jiwer`")
    extract, tokenizer = load_feature_extractor(MODEL), pybeam.load_tokenizer(MODEL)
    pairs = list(recordings("test", 25, seed=7, noise_db=(20.0, 20.0)))
    sources, texts = [extract(samples) for samples, _ in pairs], [text for _, text in pairs]
    search = pybeam.variable_beam(8, threshold=3.0, scoring=pybeam.scoring.gnmt(0.6))
    schedule = pybeam.Streaming(8)
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search, schedule=schedule)
    results = decoder.decode(sources)
    found = [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
    assert jiwer.wer(texts, found) < 0.2


def test_missing_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="`apt-get install espeak-ng`"):
        speak("one", tmp_path / "one.wav")
