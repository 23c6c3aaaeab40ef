"""`features.onnx` gives the features of the extractor, for every recording that the extractor takes."""

import json
import sys

import pytest
import torch

import pybeam
from pybeam.cli import main
from pybeam.export import export_features
from pybeam.speech import FeatureExtractor, load_feature_extractor, read_wav
from pybeam.speech.features import EXTRACTORS
from support.onnx_search import hypotheses
from support.paths import MODEL as TRANSLATOR
from support.paths import ROOT
from support.speech_models import save_tiny_speech_model, save_tiny_whisper, tone

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")
pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")

MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
SOUNDS = sorted((ROOT / "examples" / "speech").glob("*.wav"))
SPEECH2TEXT = {"feature_extractor_type": "Speech2TextFeatureExtractor"}
FIREREDASR = {"feature_extractor_type": "FireRedFeatureExtractor"}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 2}


def both(directory, config):
    """The extractor that a config describes, and its graph as a function of the same kind."""
    (directory / "preprocessor_config.json").write_text(json.dumps(config))
    export_features(directory, directory / "onnx")
    path = directory / "onnx" / "features.onnx"
    onnx.checker.check_model(path, full_check=True)
    session = ort.InferenceSession(path)

    def graph(samples):
        [features] = session.run(None, {"samples": samples.numpy()})
        return torch.from_numpy(features)

    return load_feature_extractor(directory), graph


def sound(num: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(tone(num, seed)).float() / 2**15


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("means", [True, False])
@pytest.mark.parametrize("deviations", [True, False])
def test_features_of_speech2text(rate, means, deviations, tmp_path):
    sizes = dict(sampling_rate=rate, num_mel_bins=23)
    extract, graph = both(
        tmp_path,
        SPEECH2TEXT | sizes | dict(normalize_means=means, normalize_vars=deviations),
    )
    one_frame = rate * 25 // 1000
    for num in (one_frame, one_frame + 1, one_frame + rate // 100, rate, 3 * rate + 7):
        samples = sound(num)
        found, expected = graph(samples), extract(samples)
        assert found.shape == expected.shape
        if deviations and len(expected) < 3:
            continue  # hardly anything is left of so few frames, and it is magnified
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("sizes", [{}, dict(feature_size=128), dict(n_fft=512, hop_length=100)])
def test_features_of_whisper(sizes, tmp_path):
    extract, graph = both(tmp_path, WHISPER | sizes)
    for num in (0, 1, 399, 16000, 32000):
        samples = sound(num, seed=2)
        torch.testing.assert_close(graph(samples), extract(samples), rtol=1e-3, atol=1e-3)
    # what the extractor refuses is cut
    samples = sound(40000, seed=3)
    torch.testing.assert_close(graph(samples), extract(samples[:32000]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_features_of_fireredasr(rate, tmp_path):
    draw = torch.Generator().manual_seed(4)
    mean, scale = torch.randn(2, 23, generator=draw).tolist()
    config = dict(sampling_rate=rate, num_mel_bins=23, mean=mean, inverse_deviation=scale)
    extract, graph = both(tmp_path, FIREREDASR | config)
    one_frame = rate * 25 // 1000
    for num in (one_frame, one_frame + 1, rate, 3 * rate + 7):
        samples = sound(num)
        torch.testing.assert_close(graph(samples), extract(samples), rtol=1e-3, atol=2e-3)


def test_other_features_are_refused(tmp_path, monkeypatch):
    """A class derived from one that is known computes something else."""

    class Louder(FeatureExtractor):
        def __call__(self, samples):
            return 2 * super().__call__(samples)

    monkeypatch.setitem(EXTRACTORS, "Louder", lambda *_: Louder())
    with pytest.raises(ValueError, match="Whisper or FireRedASR, but are those of Louder"):
        both(tmp_path, {"feature_extractor_type": "Louder"})


def test_silence(tmp_path):
    silence = torch.zeros(8000)
    extract, graph = both(tmp_path, WHISPER)
    assert torch.equal(graph(silence), extract(silence))
    extract, graph = both(tmp_path, SPEECH2TEXT)
    # bins that never change are divided by next to nothing
    assert graph(silence).isfinite().all() and extract(silence).isfinite().all()


def test_recordings_are_recognised_with_two_graphs_alone(tmp_path, capsys):
    assert main(["export-onnx", "--model", str(MODEL), "--output", str(tmp_path)]) == 0
    expected = f"{tmp_path}: decoder.onnx, encoder.onnx, features.onnx, search.onnx\n"
    assert capsys.readouterr().out == expected
    listen, search = (
        ort.InferenceSession(tmp_path / f"{name}.onnx") for name in ("features", "search")
    )
    extract, model = load_feature_extractor(MODEL), pybeam.load_model(MODEL, device="cpu")
    beam = pybeam.fixed_beam(5, n_best=5, max_length=60, scoring=pybeam.scoring.power(1.0))
    assert len(SOUNDS) == 2
    for path in SOUNDS:
        samples = read_wav(path, extract.sampling_rate)
        [features] = listen.run(None, {"samples": samples.numpy()})
        torch.testing.assert_close(torch.from_numpy(features), extract(samples), rtol=0, atol=5e-3)
        [found] = hypotheses(search, [features], 5, 60, 1.0)
        [result] = pybeam.Decoder(model, beam).decode([extract(samples)])
        assert [tokens for tokens, _, _ in found] == [list(h.tokens) for h in result.hypotheses]


@pytest.mark.slow
def test_no_graph_outlives_its_model(tmp_path):
    export_features(MODEL, tmp_path)
    assert main(["export-onnx", "--model", str(TRANSLATOR), "--output", str(tmp_path)]) == 0
    assert not (tmp_path / "features.onnx").exists()


def test_the_shell_says_why_there_is_none(tmp_path, capsys, monkeypatch):
    """The other graphs are written all the same."""
    save_tiny_speech_model(tmp_path / "speech")
    save_tiny_whisper(tmp_path / "whisper")
    out = tmp_path / "onnx"
    assert main(["export-onnx", "--model", str(tmp_path / "speech"), "--output", str(out)]) == 0
    captured = capsys.readouterr()
    assert "there is no features.onnx: preprocessor_config.json is missing" in captured.err
    assert captured.out == f"{out}: decoder.onnx, encoder.onnx, search.onnx\n"
    assert main(["export-onnx", "--model", str(tmp_path / "whisper"), "--output", str(out)]) == 0
    assert "features.onnx" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "kaldi_native_fbank", None)
    assert main(["export-onnx", "--model", str(MODEL), "--output", str(out)]) == 0
    assert "pip install 'pybeam-search[speech]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    monkeypatch.delitem(sys.modules, "pybeam.export.builder")
    with pytest.raises(ImportError, match=r"pip install 'pybeam-search\[onnx\]'"):
        export_features(MODEL, out)
