"""Weights that are NaN or infinite: `load_model` names the file and the tensor."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import pybeam
from pybeam.cli import main
from pybeam.models.finite import not_finite
from support.built_in_models import saved

NAN, INF = float("nan"), float("inf")
KINDS = ("m2m_100", "rnn", "t5", "causal-gemma2", "Speech2Text", "Whisper", "FireRedASR")


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    """The directory of a tiny model of some kind, saved once."""
    found = {}

    def directory(kind):
        if kind not in found:
            [found[kind]] = saved(kind, tmp_path_factory.mktemp(kind) / "model")
        return found[kind]

    return directory


def spoilt(directory, copy, name: str | None = None, wrong: float = NAN):
    """Copy a model with one wrong number, in that tensor or the first norm or bias."""
    shutil.copytree(directory, copy)
    path = copy / "model.safetensors"
    weights = load_file(path)
    name = name or min(name for name in weights if "norm" in name or "bias" in name)
    weights[name] = weights[name].clone()
    weights[name].view(-1)[-1] = wrong
    save_file(weights, path)
    return copy, name, path


@pytest.mark.parametrize(
    ("kind", "wrong"), [*((kind, NAN) for kind in KINDS), ("rnn", INF), ("rnn", -INF)]
)
def test_a_vector_is_named(directory_of, kind, wrong, tmp_path):
    copy, name, path = spoilt(directory_of(kind), tmp_path / "model", wrong=wrong)
    found = "NaN" if wrong != wrong else f"{'-' if wrong < 0 else ''}infinity"
    message = re.escape(f"`check_finite` found {found} in `{name}` in {path}; ")
    for dtype in ("float32", "int8"):
        with pytest.raises(ValueError, match=message):
            pybeam.load_model(copy, device="cpu", dtype=dtype)
    with pytest.raises(ValueError, match=message):
        pybeam.load_model([directory_of(kind), copy], device="cpu")
    pybeam.load_model(copy, device="cpu", check_finite=False)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3fn", torch.float32]
)
def test_a_matrix_and_a_table_are_named_in_every_dtype(directory_of, dtype, tmp_path):
    for i, name in enumerate(["encoder.embedding.weight", "output.weight"]):
        copy, name, path = spoilt(directory_of("rnn"), tmp_path / str(i), name)
        with pytest.raises(ValueError, match=re.escape(f"`{name}` in {path}")):
            pybeam.load_model(copy, device="cpu", dtype=dtype)


def test_a_number_that_a_dtype_cannot_hold(directory_of, tmp_path):
    name = "output.weight"
    copy, name, path = spoilt(directory_of("rnn"), tmp_path / "model", name, 1e6)
    message = (
        rf"`dtype` must .* `output\.weight` in {re.escape(str(path))} has .* torch.float16; use"
    )
    with pytest.raises(ValueError, match=message):
        pybeam.load_model(copy, device="cpu", dtype="float16")
    for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn"):
        pybeam.load_model(copy, device="cpu", dtype=dtype)


def test_a_token_whose_logit_is_minus_infinity_never_follows(directory_of, tmp_path):
    copy, *_ = spoilt(directory_of("rnn"), tmp_path / "model", "output.bias", -INF)
    model = pybeam.load_model(copy, device="cpu")
    [result] = pybeam.Decoder(model, pybeam.fixed_beam(4, n_best=4, max_length=6)).decode([[5, 2]])
    assert len(result.hypotheses) == 4
    assert all(model.vocab_size - 1 not in found.tokens for found in result.hypotheses)
    copy, *_ = spoilt(directory_of("rnn"), tmp_path / "other", "output.bias", INF)
    with pytest.raises(ValueError, match=r"found infinity in `output\.bias`"):
        pybeam.load_model(copy, device="cpu")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("kind", ["m2m_100", "rnn"])
def test_graphs(directory_of, kind, is_large, tmp_path):
    """Whether a graph holds its weights or a file beside it does."""
    onnx = pytest.importorskip("onnx")
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    for name in ("onnxruntime", "onnx_ir"):
        pytest.importorskip(name)
    graphs = tmp_path / "graphs"
    model = pybeam.load_model(directory_of(kind), device="cpu", dtype="float32")
    pybeam.export.export_onnx(model, graphs)
    pybeam.load_model(graphs)
    for part in ("encoder.onnx", "decoder.onnx"):
        copy = tmp_path / part
        shutil.copytree(graphs, copy)
        graph = onnx.load(copy / part)
        weight = max(graph.graph.initializer, key=lambda weight: len(weight.raw_data))
        values = numpy_helper.to_array(weight).copy()
        values.reshape(-1)[-1] = INF
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        options = dict(save_as_external_data=True, location=f"{part}.data", size_threshold=0)
        onnx.save_model(graph, copy / part, **(options if is_large else {}))
        where = f"infinity in `{weight.name}` in {copy / part}{'.data' if is_large else ''}; "
        with pytest.raises(ValueError, match=re.escape(where)):
            pybeam.load_model(copy)
        pybeam.load_model(copy, check_finite=False)


def test_the_command_line_says_it_too(directory_of, tmp_path, capfd):
    copy, name, _ = spoilt(directory_of("m2m_100"), tmp_path / "model")
    arguments = ["profile", "--model", str(copy), "--algorithm=greedy", "--device=cpu"]
    arguments += ["--lines=1", "--repeats=1", "--max-length=3"]
    assert main(arguments) == 1
    said = capfd.readouterr().err
    assert f"--check-finite found NaN in `{name}`" in said and "Traceback" not in said
    assert main([*arguments, "--no-check-finite"]) == 1
    assert "the model returned NaN" in capfd.readouterr().err


def test_what_is_not_finite():
    assert not_finite(torch.empty(0, 3), "x") is None
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        fit = torch.tensor([torch.finfo(dtype).max, -torch.finfo(dtype).max], dtype=dtype)
        assert not_finite(fit, "x") is None
        for wrong, found in ((NAN, "NaN"), (INF, "infinity"), (-INF, "-infinity")):
            assert not_finite(torch.tensor([1.0, wrong, 2.0], dtype=dtype), "x") == found
        # NaN is said first, as infinities may be meant
        assert not_finite(torch.tensor([INF, NAN], dtype=dtype), "final_logits_bias") == "NaN"


def test_it_is_yes_or_no(directory_of):
    with pytest.raises(TypeError, match="`check_finite` must be True or False, but is 1"):
        pybeam.load_model(directory_of("rnn"), check_finite=1)
