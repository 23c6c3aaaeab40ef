"""Features of sound beside transformers', and what is refused."""

import json
import sys

import numpy as np
import pytest
import torch
import transformers

from pybeam.speech import FeatureExtractor, load_feature_extractor, read_wav
from support.speech_models import tone, write_wav

pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
KIND = {"feature_extractor_type": "Speech2TextFeatureExtractor"}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor"}


@pytest.mark.parametrize(("normalize_means", "normalize_vars"), [(True, True), (False, False)])
def test_features_are_those_of_transformers(normalize_means, normalize_vars):
    options = dict(normalize_means=normalize_means, normalize_vars=normalize_vars)
    samples = tone(9000, seed=1) / np.float32(2**15)
    original = transformers.Speech2TextFeatureExtractor(num_mel_bins=20, feature_size=20, **options)
    expected = original(samples, sampling_rate=16000).input_features[0]
    found = FeatureExtractor(20, 16000, **options)(torch.from_numpy(samples))
    assert found.shape == (1 + (9000 - 400) // 160, 20) and found.dtype == torch.float32
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-3, atol=1e-3)


def test_silence_and_a_moment_have_features():
    extract = FeatureExtractor(12, 8000)
    assert extract(torch.zeros(8000)).isfinite().all()
    assert extract(torch.zeros(199)).shape == extract(torch.zeros(0)).shape == (0, 12)
    assert extract(torch.zeros(200)).shape == (1, 12)


def test_extractor_of_a_directory(tmp_path):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**KIND, "num_mel_bins": 7, "do_ceptral_normalize": False}))
    extract = load_feature_extractor(tmp_path)
    assert (extract.num_mel_bins, extract.sampling_rate) == (7, 16000)
    samples = torch.from_numpy(tone(2000, seed=2)) / 2**15
    plain = FeatureExtractor(7, 16000, normalize_means=False, normalize_vars=False)
    assert torch.equal(extract(samples), plain(samples))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "must be one of Speech2TextFeatureExtractor, Whisper.*, but is None"),
        ({**WHISPER, "dither": 0.1}, r"`dither`.*must be 0.*0\.1; compute"),
        ({**WHISPER, "feature_size": 0}, r"`feature_size`.*positive integer"),
        ({**WHISPER, "sampling_rate": 8000}, "at least 16000, but is 8000"),
        ({**KIND, "sampling_rate": "16k"}, "`sampling_rate`.*positive integer"),
        ({**KIND, "num_mel_bins": 0}, "`num_mel_bins`.*positive integer"),
    ],
)
def test_other_extractors_are_refused(tmp_path, config, message):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_feature_extractor(tmp_path)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldi_native_fbank", None)
    with pytest.raises(ImportError, match=r"pip install 'pybeam-search\[speech\]'"):
        FeatureExtractor()


def test_samples_of_a_wav_file(tmp_path):
    samples = tone(500, seed=3)
    write_wav(tmp_path / "a.wav", samples, 8000)
    found = read_wav(tmp_path / "a.wav", 8000)
    assert torch.equal(found, torch.from_numpy(samples.astype(np.float32) / 2**15))
    assert float(found.abs().max()) <= 1


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (dict(rate=16000), "must have 8000 Hz, but has 16000; convert it: `ffmpeg.*-ar 8000"),
        (dict(rate=8000, channels=2), "must have 1 channels, but has 2"),
        (dict(rate=8000, width=4), "must have 16 bits per sample, but has 32"),
        (None, "must be a WAV file with PCM samples: file does not start with RIFF id; convert"),
        (b"", "must be a WAV file with PCM samples: it ends too early; convert it"),
    ],
)
def test_other_files_are_refused(tmp_path, form, message):
    path = tmp_path / "a.wav"
    if not isinstance(form, dict):
        path.write_bytes(b"ID3 no sound" if form is None else form)
    else:
        write_wav(path, tone(500, seed=4), **form)
    with pytest.raises(ValueError, match=message):
        read_wav(path, 8000)
