"""Exported attentional LSTMs find what torch finds; the example models among them."""

from pathlib import Path

import pytest

import pybeam
from pybeam.cli import main
from pybeam.export import export_onnx
from pybeam.models.onnx.rnn import OnnxRnn
from support.example_model import assert_agree
from support.paths import ROOT
from support.tiny_rnn import save_tiny_rnn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

EXAMPLES = ROOT / "examples" / "semantic_parsing"
QUESTIONS = {
    "geo": [
        "what is the capital of var0",
        "which rivers do not run through var0",
        "how big is var0",
    ],
    "atis": ["list flights from ci0 to ci1", "show me the cheapest flight to ci0 on dn0", "ci0"],
}
ALGORITHMS = [
    pybeam.greedy(max_length=40),
    pybeam.fixed_beam(4, n_best=4, max_length=40),
    pybeam.variable_beam(6, 4.0, 4, n_best=3, max_length=40),
]


def exported(directory: Path, target: Path):
    """The model and what was exported from it."""
    model = pybeam.load_model(directory, device="cpu")
    export_onnx(model, target)
    for graph in ("encoder", "decoder"):
        onnx.checker.check_model(target / f"{graph}.onnx", full_check=True)
    found = pybeam.load_model(target)
    assert type(found) is OnnxRnn
    return model, found


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("changes", [{}, dict(num_layers=1, reverses_source=False)])
def test_every_network(changes, tmp_path):
    """With an empty source, prefixes and a target; alone and beside the original in an ensemble."""
    save_tiny_rnn(tmp_path, **changes)
    original, model = exported(tmp_path, tmp_path / "onnx")
    sources = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 30, 31], [], [8, 9], [11, 12, 13, 14]]
    requests = [
        *sources,
        pybeam.Request([3, 4], prefix=[17, 5], width=2, n_best=1),
        pybeam.Request([3, 4], target=[20, 21, 22]),
    ]
    for algorithm in ALGORITHMS:
        for schedule in (pybeam.Streaming(3, row_budget=7), pybeam.Batch(4)):
            found = [
                pybeam.Decoder(one, algorithm, schedule).decode(requests)
                for one in (model, original)
            ]
            assert_agree(*found)
        both = pybeam.models.Ensemble([original, model])
        assert_agree(pybeam.Decoder(both, algorithm).decode(requests), found[1])
    assert {h.ended for result in found[0] for h in result.hypotheses} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_example_models(name, tmp_path, capfd):
    original, model = exported(EXAMPLES / name, tmp_path / "onnx")
    tokenizer = pybeam.load_tokenizer(tmp_path / "onnx")
    sources = [tokenizer.encode(question) for question in QUESTIONS[name]]
    for algorithm in ALGORITHMS:
        found = [pybeam.Decoder(one, algorithm).decode(sources) for one in (model, original)]
        assert_agree(*found)
    (tmp_path / "in.txt").write_text("\n".join(QUESTIONS[name]))
    outputs = []
    for directory in (EXAMPLES / name, tmp_path / "onnx"):
        options = "--model", str(directory), "--input", str(tmp_path / "in.txt"), "--quiet"
        assert main(["translate", *options]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == 3


def test_nothing_of_an_earlier_export_is_left(tmp_path):
    """A whole search of another model would stand beside the LSTM's graphs."""
    save_tiny_rnn(tmp_path)
    target = tmp_path / "onnx"
    target.mkdir()
    for name in ("search.onnx", "search.onnx.data", "encoder.onnx", "notes.txt"):
        (target / name).write_text("old")
    exported(tmp_path, target)
    assert {path.name for path in target.iterdir()} & {"search.onnx", "search.onnx.data"} == set()
    assert (target / "notes.txt").read_text() == "old"


def test_what_it_does_not_take(tmp_path):
    save_tiny_rnn(tmp_path)
    _, model = exported(tmp_path, tmp_path / "onnx")
    with pytest.raises(ValueError, match="ids of `source` must be 0 to 36, but one is 37"):
        model.check([37])
    with pytest.raises(ValueError, match="guesses tokens ahead, but a step of this OnnxRnn"):
        pybeam.Decoder(model, pybeam.jacobi())
    with pytest.raises(TypeError, match="OnnxRnn; it is exported already"):
        export_onnx(model, tmp_path / "again")
    narrow = pybeam.load_model(tmp_path, device="cpu", dtype="bfloat16")
    with pytest.raises(ValueError, match=r"must be torch.float32, but are torch.bfloat16"):
        export_onnx(narrow, tmp_path / "again")
    assert not (tmp_path / "again").exists()
