"""Exported models that listen: what they find, whatever is behind a recording or beside it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pybeam
from pybeam.cli import main
from pybeam.export import export_onnx
from pybeam.models.onnx.model import OnnxSpeechModel
from pybeam.speech import load_transcription
from support.example_model import ALGORITHMS, assert_agree
from support.onnx_search import assert_finds_the_same, hypotheses
from support.paths import ROOT
from support.speech_models import random_features, save_tiny_speech_model, save_tiny_whisper

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
SOUNDS = ROOT / "examples" / "speech"
SEARCHES = ALGORITHMS | {
    "fireredasr": pybeam.compat.fireredasr.beam_search(
        beam_size=5, nbest=4, softmax_smoothing=1.25, eos_penalty=0.9, length_penalty=0.6
    )
}
# everything that the front and what is behind it can be
NETWORKS = {
    "default": dict(eos_nats=1.5),
    "bare": dict(
        num_conv_layers=1,
        conv_kernel_sizes=[1],
        max_source_positions=90,
        scale_embedding=False,
        activation_function="gelu",
        tie_word_embeddings=False,
    ),
}


@pytest.fixture(scope="module")
def original():
    return pybeam.load_model(MODEL, device="cpu")


@pytest.fixture(scope="module")
def folder(original, tmp_path_factory) -> Path:
    """The example model, exported."""
    directory = tmp_path_factory.mktemp("onnx")
    export_onnx(original, directory)
    return directory


@pytest.fixture(scope="module")
def sources():
    """Two recordings, parts of them, and noise; one frame and the most that the model takes."""
    pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
    from pybeam.speech import load_feature_extractor, read_wav

    extract = load_feature_extractor(MODEL)
    names = "first.wav", "second.wav"
    first, second = (extract(read_wav(SOUNDS / name, extract.sampling_rate)) for name in names)
    noise = torch.randn(2048, 40, generator=torch.Generator().manual_seed(0))
    return [first, second, first[:60], noise[:1], second[40:], noise[:9], noise]


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_front(name, tmp_path):
    save_tiny_speech_model(tmp_path / "original", **NETWORKS[name])
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    export_onnx(model, tmp_path / "onnx")
    for graph in ("encoder", "decoder", "search"):
        onnx.checker.check_model(tmp_path / "onnx" / f"{graph}.onnx", full_check=True)
    sources = random_features(6)
    algorithm = pybeam.variable_beam(6, 4.0, 4, n_best=3, max_length=20)
    ours, theirs = (
        pybeam.Decoder(one, algorithm, pybeam.Fifo(3, row_budget=9)).decode(
            [*sources, sources[0][:0]]
        )
        for one in (pybeam.load_model(tmp_path / "onnx"), model)
    )
    assert_agree(ours, theirs)
    assert ours[-1].stop_reason == "empty_source"
    search = ort.InferenceSession(tmp_path / "onnx" / "search.onnx")
    expected = assert_finds_the_same(search, model, sources, 4, 12, 0.7, behind=np.nan)
    assert {h.ended for result in expected for h in result.hypotheses} == {True, False}


def test_whisper(tmp_path):
    """Convolutions of another stride with GELU, and a prefix."""
    save_tiny_whisper(tmp_path / "original")
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    export_onnx(model, tmp_path / "onnx")
    assert sorted(path.name for path in tmp_path.glob("onnx/*.onnx")) == [
        "decoder.onnx",
        "encoder.onnx",
        "search.onnx",
    ]
    asked = load_transcription(tmp_path / "onnx", "en")
    search = pybeam.fixed_beam(4, n_best=3, max_length=10, processors=asked.processors)
    requests = [pybeam.Request(source, prefix=asked.prefix) for source in random_features(6)]
    ours, theirs = (
        pybeam.Decoder(one, search, pybeam.Fifo(3)).decode(requests)
        for one in (pybeam.load_model(tmp_path / "onnx"), model)
    )
    assert_agree(ours, theirs)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", SEARCHES)
def test_the_engine_finds_what_it_finds_with_torch(folder, original, sources, name):
    model = pybeam.load_model(folder)
    assert type(model) is OnnxSpeechModel
    expected = pybeam.Decoder(original, SEARCHES[name]).decode(sources)
    width = SEARCHES[name].width
    for schedule in (pybeam.Streaming(4, row_budget=3 * width), pybeam.Batch(3)):
        found = pybeam.Decoder(model, SEARCHES[name], schedule).decode(sources)
        assert_agree(found, expected)
    assert len(expected[0].hypotheses[0].tokens) == 3  # four zero seven


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    ("num", "width", "max_length", "length_penalty"),
    [(7, 1, 60, 0.0), (7, 5, 60, 1.0), (1, 12, 3, -0.5)],
)
def test_the_whole_search_in_one_graph(
    folder, original, sources, num, width, max_length, length_penalty
):
    """With NaN behind the recordings, which must not be read."""
    search = ort.InferenceSession(folder / "search.onnx")
    options = width, max_length, length_penalty
    assert_finds_the_same(search, original, sources[:num], *options, behind=np.nan)


def test_padding_and_batch_mates_change_nothing(folder, sources):
    encoder, search = (
        ort.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "search")
    )
    together = hypotheses(search, sources, 3, 20, 0.0, behind=np.nan)
    for source, found in zip(sources, together, strict=True):
        (alone,) = hypotheses(search, [source], 3, 20, 0.0)
        assert [tokens for tokens, *_ in alone] == [tokens for tokens, *_ in found]
        length = np.array([len(source)])
        exact, length_alone = encoder.run(
            None, {"features": source[None].numpy(), "feature_length": length}
        )
        padded = torch.nn.functional.pad(source, (0, 0, 0, 3), value=np.nan)[None, :2048].numpy()
        key_value, positions = encoder.run(None, {"features": padded, "feature_length": length})
        assert positions == length_alone == exact.shape[4]
        np.testing.assert_allclose(
            key_value[:, :, :, :, : exact.shape[4]], exact, rtol=0, atol=1e-5
        )


def test_requests_are_checked_as_those_of_the_model(folder, original, sources):
    model = pybeam.load_model(folder)
    for bad in (
        [1, 2],
        torch.zeros(4, 40, dtype=torch.long),
        torch.zeros(4, 39),
        torch.zeros(1, 4, 40),
        torch.zeros(2049, 40),
        np.full((4, 40), np.nan),
    ):
        with pytest.raises((TypeError, ValueError)) as expected:
            original.check(bad)
        with pytest.raises(expected.type) as found:
            model.check(bad)
        assert str(found.value) == str(expected.value)
        decoder = pybeam.Decoder(model, pybeam.greedy(max_length=3))
        failed, good = decoder.decode([bad, sources[1]], on_error="return")
        assert type(failed.error) is expected.type and good.error is None
    assert torch.equal(model.check(sources[0].double().numpy()), sources[0])


def test_sources_wait_for_memory(folder, original, sources):
    """As much as the example model would take; positions count, not frames."""
    algorithm = pybeam.fixed_beam(4, max_length=15)
    expected = pybeam.Decoder(original, algorithm, pybeam.Batch(1)).decode(sources)
    model = pybeam.load_model(folder)
    need = [
        one.session(pybeam.backends.load("reference")).max_bytes(80, one.source_length(sources[0]))
        for one in (model, original)
    ]
    assert need[0] == need[1]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(4), memory_limit=2 * need[0])
    found = decoder.decode(sources, on_error="return")
    assert_agree(found[:-1], expected[:-1])
    assert "256 source positions" in str(found[-1].error)


def test_command_line(folder, capfd, tmp_path):
    pytest.importorskip("kaldi_native_fbank", reason="needs `pip install 'pybeam-search[speech]'`")
    outputs = []
    for model in (MODEL, folder):
        options = "--quiet", "--n-best", "3", "--schedule", "fifo", "--model", str(model)
        sounds = [str(SOUNDS / name) for name in ("first.wav", "second.wav")]
        assert main(["transcribe", *options, *sounds]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] and "four zero seven" in outputs[0]
    (tmp_path / "in.txt").write_text("uno\n")
    assert main(["translate", "--model", str(folder), "--input", str(tmp_path / "in.txt")]) == 1
    assert "reads sound; use `pybeam transcribe`" in capfd.readouterr().err
