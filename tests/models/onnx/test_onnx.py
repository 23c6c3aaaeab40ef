"""Exported models: the graphs are valid, and both ways to run them find what torch finds."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import pybeam
from pybeam.cli import main
from pybeam.export import export_onnx
from pybeam.models import Ensemble
from pybeam.models.onnx.model import OnnxModel
from support.example_model import ALGORITHMS, LINES, assert_agree
from support.onnx_search import assert_finds_the_same, hypotheses
from support.paths import MODEL
from support.tiny_models import KINDS, save_tiny_model

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

# one of every architecture, activation and kind of table; the others differ in what torch alone sees
QUICK = ("m2m_100-pad0", "mbart-scaled", "bart-gelu_new", "marian-separate", "fsmt")


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
def sources(original):
    tokenizer = pybeam.load_tokenizer(MODEL)
    return [tokenizer.encode(line) for line in LINES]


@pytest.fixture(scope="module")
def search(folder):
    return ort.InferenceSession(folder / "search.onnx")


def ending_model(directory: Path, kind: str, sources) -> pybeam.models.Transformer:
    """A tiny model of that kind, whose EOS is a token that it likes."""
    save_tiny_model(directory, kind)
    path = directory / "generation_config.json"
    model = pybeam.load_model(directory, device="cpu")
    outputs = pybeam.Decoder(model, pybeam.greedy(max_length=8)).decode(sources)
    liked = Counter(token for result in outputs for token in result.hypotheses[0].tokens)
    eos = {"eos_token_id": liked.most_common(1)[0][0]}
    path.write_text(json.dumps({"decoder_start_token_id": model.start_id} | eos))
    return pybeam.load_model(directory, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_every_architecture(kind, tmp_path):
    sources = [[5, 9, 30, 2], [7], [11, 3, 4, 30, 31, 32, 33, 34, 2], [8, 8, 8, 2, 6]]
    model = ending_model(tmp_path / "original", kind, sources)
    export_onnx(model, tmp_path / "onnx")
    for name in ("encoder", "decoder", "search"):
        onnx.checker.check_model(tmp_path / "onnx" / f"{name}.onnx", full_check=True)
    algorithm = pybeam.variable_beam(6, 4.0, 4, n_best=3, max_length=20)
    ours, theirs = (
        pybeam.Decoder(one, algorithm, pybeam.Fifo(3, row_budget=9)).decode(sources)
        for one in (pybeam.load_model(tmp_path / "onnx"), model)
    )
    assert_agree(ours, theirs)
    search = ort.InferenceSession(tmp_path / "onnx" / "search.onnx")
    expected = assert_finds_the_same(search, model, sources, 4, 12, 0.7)
    ended = [h.ended for result in expected for h in result.hypotheses]
    assert True in ended and any(result.stop_reason == "width" for result in expected)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_engine_finds_what_it_finds_with_torch(folder, original, sources, name):
    model = pybeam.load_model(folder)
    assert isinstance(model, OnnxModel)
    expected = pybeam.Decoder(original, ALGORITHMS[name]).decode(sources)
    schedule = pybeam.Streaming(4, row_budget=3 * ALGORITHMS[name].width)
    assert_agree(pybeam.Decoder(model, ALGORITHMS[name], schedule).decode(sources), expected)


@pytest.mark.slow
@pytest.mark.parametrize("build", [pybeam.jacobi, pybeam.gauss_seidel_jacobi])
def test_guesses_ahead_are_seen_by_those_behind_them(folder, original, sources, build):
    """Greedy's output, with guesses of one source beside those of others, in fewer steps."""
    model = pybeam.load_model(folder)
    expected = pybeam.Decoder(original, pybeam.greedy(max_length=60)).decode(sources)
    decoder = pybeam.Decoder(model, build(max_length=60), pybeam.Fifo(3))
    found = decoder.decode(sources)
    assert_agree(found, expected)
    assert sum(r.steps for r in found) < sum(r.steps for r in expected)


def test_all_that_a_request_may_want(folder, original, sources):
    """Prefixes, targets, processors and per-request limits go through the exported model too."""
    requests = [
        pybeam.Request(sources[0], prefix=[17, 5], n_best=2),
        pybeam.Request(sources[1], width=70, n_best=3, max_length=9),
        pybeam.Request(sources[2], target=[20, 21, 22]),
        pybeam.Request([]),
    ]
    processors = [pybeam.processors.repetition_penalty(1.3)]
    results = [
        pybeam.Decoder(
            model, pybeam.shrinking_beam(70, max_length=12, processors=processors)
        ).decode(requests)
        for model in (pybeam.load_model(folder), original)
    ]
    assert_agree(*results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "max_length", "length_penalty"),
    [(1, 60, 0.0), (5, 60, 1.0), (5, 8, -0.5), (12, 20, 0.6)],
)
def test_the_whole_search_in_one_graph(
    search, original, sources, width, max_length, length_penalty
):
    assert_finds_the_same(search, original, sources, width, max_length, length_penalty)


def test_limits_of_positions_and_of_file_sizes(tmp_path, monkeypatch):
    """The graph keeps to the model's positions; weights that are too many for one file lie beside it."""
    monkeypatch.setattr("pybeam.export.builder.MAX_BYTES", 0)
    save_tiny_model(tmp_path / "original", "m2m_100")
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    export_onnx(model, tmp_path / "onnx")
    assert len(list((tmp_path / "onnx").glob("*.onnx.data"))) == 3
    search = ort.InferenceSession(tmp_path / "onnx" / "search.onnx")
    assert_finds_the_same(search, model, [[5, 9, 30]], 2, model.max_positions, 0.0)
    (found,) = hypotheses(search, [[5, 9, 30]], 2, 1000, 0.0)
    assert max(len(tokens) for tokens, *_ in found) == model.max_positions


@pytest.mark.slow
def test_padding_and_batch_mates_change_nothing(search, sources):
    together = hypotheses(search, sources, 3, 20, 0.0)
    for source, found in zip(sources[:3], together, strict=False):
        (alone,) = hypotheses(search, [source], 3, 20, 0.0)
        assert [tokens for tokens, *_ in alone] == [tokens for tokens, *_ in found]


@pytest.mark.slow
def test_command_line(tmp_path, capfd):
    directory = tmp_path / "deep" / "onnx"
    assert main(["export-onnx", "--model", str(MODEL), "--output", str(directory)]) == 0
    (tmp_path / "in.txt").write_text("\n".join(LINES), encoding="utf-8")
    options = "--input", str(tmp_path / "in.txt"), "--algorithm", "variable", "--quiet"
    written = "decoder.onnx, encoder.onnx, search.onnx"
    assert capfd.readouterr().out == f"{directory}: {written}\n"
    outputs = []
    for model in (MODEL, directory):
        assert main(["translate", "--model", str(model), *options]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == len(LINES)
    assert (
        main(["export-onnx", "--model", str(directory), "--output", str(tmp_path / "again")]) == 1
    )
    assert "built-in transformer" in capfd.readouterr().err
    assert main(["export-onnx", "--model", str(MODEL), "--output", str(MODEL)]) == 1
    assert "--output must not be that of the model itself" in capfd.readouterr().err


@pytest.mark.slow
def test_a_folder_has_what_its_model_was_loaded_with(tmp_path):
    """The EOS that was given, and the settings without those that were left out."""
    directory, file = tmp_path / "model", "generation_config.json"
    save_tiny_model(directory, "marian")
    settings = json.loads((directory / file).read_text())
    changes = {"min_length": 5, "no_repeat_ngram_size": 2}
    (directory / file).write_text(json.dumps(settings | changes))
    for eos_id in (7, [9, 7]):
        model = pybeam.load_model(directory, device="cpu", eos_id=eos_id)
        model = model.without("min_length", "forced_eos_token_id")
        export_onnx(model, tmp_path / "onnx")
        found = pybeam.load_model(tmp_path / "onnx")
        assert (found.eos_ids, found.settings) == (model.eos_ids, model.settings)
    export_onnx(pybeam.load_model(directory, device="cpu"), tmp_path / "onnx")
    assert (tmp_path / "onnx" / file).read_text() == (directory / file).read_text()


def test_what_cannot_be_exported_is_refused(original, folder, tmp_path):
    function = pybeam.models.FunctionModel(lambda *_: None, vocab_size=5, bos_id=0, eos_id=1)
    for model, remedy in (
        (Ensemble([original, original]), "Ensemble; export its members one by one"),
        (pybeam.load_model(folder), "OnnxModel; it is exported already"),
        (function, "FunctionModel; decode it with pybeam.Decoder"),
    ):
        with pytest.raises(TypeError, match=f"built-in transformer.* is {remedy}"):
            export_onnx(model, tmp_path)
    narrow = pybeam.load_model(MODEL, device="cpu", dtype="bfloat16")
    with pytest.raises(ValueError, match=r"must be torch.float32, but are torch.bfloat16; load it"):
        export_onnx(narrow, tmp_path)
    with pytest.raises(ValueError, match="`directory` must not be that of the model itself"):
        export_onnx(original, MODEL)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_loaded_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"`dtype` must be 'auto' or 'float32' for ONNX graphs"):
        pybeam.load_model(folder, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"`device` must be 'cpu' for ONNX graphs .* is meta; "):
        pybeam.load_model(folder, device="meta")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))} must be graphs that pybeam"):
        pybeam.load_model(tmp_path)


@pytest.mark.parametrize("package", ["onnx_ir", "onnxruntime"])
def test_missing_packages_are_named(original, folder, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("builder", "kinds", "layers", "rnn", "search", "transformer"):
        monkeypatch.delitem(sys.modules, f"pybeam.export.{module}", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'pybeam-search\[onnx\]'"):
        export_onnx(original, tmp_path) if package == "onnx_ir" else pybeam.load_model(folder)
