"""Weights in int4: the formula, what becomes int4, and how near models are to float32."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.backends import load
from pybeam.backends.int4 import GROUP, dequantised, fold, pack, quantise_groups, unfold, unpack
from pybeam.backends.packing import Quantised
from pybeam.models import load_model
from pybeam.models.int4 import Int4Linear
from pybeam.models.linear import PackedLinear
from support.built_in_models import parts_of, saved
from support.ctranslate2_folders import convert, tiny_translator
from support.example_model import LINES
from support.marian_folders import write_folder
from support.paths import MODEL

SHAPES = [(64, 32), (1, 1), (63, 7), (65, 33), (130, 1030)]


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_columns", "depth"), SHAPES)
def test_weights_come_back(num_columns, depth):
    weight = numbers(num_columns, depth)
    q, scale = held = quantise_groups(weight)
    assert q.dtype == torch.int8 and q.shape == weight.shape
    assert scale.shape == (num_columns, -(-depth // GROUP)) and scale.dtype == torch.bfloat16
    for g, (part, own) in enumerate(zip(weight.split(GROUP, 1), q.split(GROUP, 1), strict=True)):
        most = torch.tensor([max(row, key=abs) for row in part.tolist()])
        rounded = []
        for largest in (-8, 7):
            step = (most / largest).bfloat16().float()
            integers = (part / step[:, None]).round().clamp(-8, 7)
            errors = ((part - integers * step[:, None]) ** 2).sum(1).tolist()
            rounded.append((errors, step, integers.to(torch.int8)))
        for i, errors in enumerate(zip(rounded[0][0], rounded[1][0], strict=True)):
            _, step, integers = rounded[errors.index(min(errors))]
            assert scale[i, g] == step[i] and torch.equal(own[i], integers[i])
    assert torch.equal(unfold(fold(q), depth), q)
    assert fold(q).shape == (num_columns, scale.shape[1] * GROUP // 2)
    index = torch.arange(num_columns).flip(0)
    found = unpack(pack(held), index, depth)
    assert torch.equal(found.q, q[index]) and torch.equal(found.scale, scale[index])


def test_groups_of_zeros():
    weight = numbers(3, 64)
    weight[1, :32] = 0
    held = quantise_groups(weight)
    assert held.scale[1, 0] == 0 and (dequantised(held)[1, :32] == 0).all()


def test_two_weights_in_a_byte():
    q = torch.arange(-8, 8).repeat(2)[None, :32].to(torch.int8)
    folded = fold(q)[0].tolist()
    assert folded[:4] == [(q[0, i] + 8) + 16 * (q[0, i + 4] + 8) for i in range(4)]


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize(("num_columns", "depth"), SHAPES)
def test_the_formula(name, num_columns, depth):
    """In float64, of the numbers that integers stand for."""
    if name == "native":
        pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    weight, bias, x = numbers(num_columns, depth), numbers(num_columns, seed=2), numbers(9, depth)
    layer = Int4Linear(quantise_groups(weight), bias).with_backend(load(name))
    step = x.double().abs().amax(1, keepdim=True) / 127
    right = (x / step).round() * step @ dequantised(quantise_groups(weight)).double().t() + bias
    torch.testing.assert_close(layer(x), right.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(layer.weight, dequantised(quantise_groups(weight)))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", ["causal-qwen3", "causal-gpt2", "causal-mixtral", "t5", "rnn"])
def test_layers_are_int4_and_tables_int8(kind, tmp_path):
    [directory] = saved(kind, tmp_path / kind)
    model = load_model(directory, dtype="int4")
    assert (model.dtype, model.weight_dtype) == (torch.float32, torch.int4)
    parts = parts_of(model)
    layers = [part for part in parts if isinstance(part, Int4Linear)]
    others = [part for part in parts if isinstance(part, PackedLinear) and part not in layers]
    assert len(layers) >= 4 and {layer._weight.ndim for layer in layers} == {3}
    assert type(model.output) is PackedLinear and model.output in others
    held = torch.int8 if kind.startswith("causal") else torch.uint8
    assert model.output._weight.dtype == held
    assert {part.scale.ndim for part in parts if isinstance(part, Quantised)} <= {1}


@pytest.mark.parametrize("system", ["CTranslate2", "Marian"])
def test_folders_of_other_systems(system, tmp_path):
    """Layers become int4 of the numbers that their floats, or their int8, stand for."""
    if system == "Marian":
        write_folder(tmp_path, 7)
    else:
        pytest.importorskip("ctranslate2")
        convert(tiny_translator("m2m_100-even"), tmp_path, "int8")
    layers, exact = (
        [part for part in parts_of(load_model(tmp_path, "cpu", dtype)) if hasattr(part, "weight")]
        for dtype in ("int4", "float32")
    )
    assert sum(isinstance(layer, Int4Linear) for layer in layers) >= 8
    for layer, floats in zip(layers, exact, strict=True):
        if isinstance(layer, Int4Linear):
            assert torch.equal(layer.weight, dequantised(quantise_groups(floats.weight)))


@pytest.mark.slow
def test_the_example_model_is_near_float32():
    """A step of int4 is 18 times that of int8, and the small model was not trained for it."""
    lines = pybeam.load_tokenizer(MODEL).encode(LINES)
    exact = pybeam.Decoder(load_model(MODEL, device="cpu", dtype="float32"), pybeam.greedy())
    targets = [result.hypotheses[0].tokens for result in exact.decode(lines)]
    scores = []
    for dtype in ("float32", "int8", "int4"):
        decoder = pybeam.Decoder(load_model(MODEL, device="cpu", dtype=dtype), pybeam.greedy())
        found = [result.hypotheses[0] for result in decoder.score(lines, targets)]
        scores.append(sum(one.score for one in found) / sum(len(one.tokens) for one in found))
    float32, int8, int4 = scores
    assert abs(int8 - float32) < 0.02 and abs(int4 - float32) < 0.1


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    [directory] = saved("causal-qwen3", tmp_path)
    path, name = directory / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    weights = load_file(path)
    weights[name][3, 4] = float("nan")
    save_file(weights, path)
    with pytest.raises(ValueError, match=rf"`{name}` in .*safetensors must be finite, but has NaN"):
        load_model(directory, dtype="int4")
