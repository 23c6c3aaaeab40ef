"""FireRedASR-AED as graphs: its Conformer, its decoder and its search find what pybeam finds."""

import numpy as np
import pytest

import pybeam
from pybeam import compat
from pybeam.export import convert_fireredasr, export_onnx
from pybeam.models.onnx.model import OnnxSpeechModel
from support import example_model
from support.fireredasr_files import recordings, save_published
from support.onnx_search import assert_agree, hypotheses, load_graph, numbers_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

SEARCH = compat.fireredasr.beam_search(
    4, nbest=3, softmax_smoothing=1.25, length_penalty=0.6, eos_penalty=0.9
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fireredasr")
    save_published(directory / "published", eos_nats=2.0)
    convert_fireredasr(directory / "published", directory / "model")
    return pybeam.load_model(directory / "model", device="cpu")


def test_every_graph(model, tmp_path):
    """With NaN behind the recordings, which must not be read; many at once and one alone."""
    export_onnx(model, tmp_path, SEARCH)
    for name in ("encoder", "decoder", "search"):
        onnx.checker.check_model(tmp_path / f"{name}.onnx", full_check=True)
    sources = recordings(10)
    expected = pybeam.Decoder(model, SEARCH).decode(sources)
    assert {h.ended for result in expected for h in result.hypotheses} == {True, False}
    exported = pybeam.load_model(tmp_path)
    assert type(exported) is OnnxSpeechModel
    found = pybeam.Decoder(exported, SEARCH, pybeam.Fifo(2)).decode(sources)
    example_model.assert_agree(found, expected)
    graph, numbers = load_graph(tmp_path), numbers_of(SEARCH, model)
    assert_agree(hypotheses(graph, sources, *numbers, np.nan), expected)
    for i, source in enumerate(sources):
        assert_agree(hypotheses(graph, [source], *numbers), expected[i : i + 1])
