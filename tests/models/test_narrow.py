"""Weights of 8 and 4 bits as a GPU reads them: the formula, the order in memory, and whole models."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam.backends import int4
from pybeam.backends.defaults import rounded_rows
from pybeam.backends.narrow import dequantised, stored
from pybeam.backends.packing import Quantised, quantise
from pybeam.models import few_bits, load_model, narrow, weights
from pybeam.models.float8 import Float8Linear
from pybeam.models.linear import PlainLinear
from pybeam.models.narrow import NarrowLinear, wide
from pybeam.models.transformer.few_rows import FewRowsLinear
from support.built_in_models import saved
from support.device_loop import assert_alike
from support.speech_models import random_features
from support.tiny_models import save_tiny_model

KINDS = {
    "int8": quantise,
    "int4": int4.quantise_groups,
    "float8": lambda weight: Quantised(*rounded_rows(weight)),
}
# one, and none of them a multiple of what is read at once
SHAPES = [(1, 1), (1, 16), (3, 33), (5, 64), (17, 300)]


def random(kind: str, *shape: int, seed: int = 1) -> tuple[Quantised, torch.Tensor]:
    """Weights, and the numbers that they stand for."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    held = KINDS[kind](weight)
    numbers = int4.dequantised(held) if kind == "int4" else held.q.float() * held.scale[:, None]
    return held, numbers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_numbers_are_kept(kind, shape):
    held, numbers = random(kind, *shape)
    kept = stored(held)
    assert torch.equal(dequantised(kept, shape[1], torch.float32), numbers)
    bits = {"int8": 8, "int4": 4, "float8": 8}[kind]
    assert 8 * kept.q.nbytes <= shape[0] * bits * (shape[1] + 127)


@pytest.mark.parametrize("part", [1 << 24, 100])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_formula(kind, part, monkeypatch):
    monkeypatch.setattr(narrow, "PART", part)
    held, numbers = random(kind, 24, 40)
    bias, x = torch.randn(24), torch.randn(5, 40)
    linear = NarrowLinear(held, bias, "relu")
    expected = x @ numbers.t() + bias
    torch.testing.assert_close(linear(x), expected.relu())
    memory = torch.full((7, 24), 3.0)
    assert torch.equal(linear(x, memory), linear(x)) and bool((memory[5:] == 3).all())
    torch.testing.assert_close(linear.add(torch.ones(5, 24), x), expected + 1)
    product, own = linear.without_bias(x)
    torch.testing.assert_close(product + own, expected)
    assert wide(held, torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(wide(held, torch.float32), numbers)
    assert linear(x[:0]).shape == (0, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_are_those_of_a_backend(kind):
    """The backend gets the numbers in memory, and other rows go where they went."""
    held, numbers = random(kind, 24, 64)
    bias, x = torch.randn(24), torch.randn(5, 64)
    seen = []

    def product(x, weight, bias, activation, residual, norm, ahead=None):
        seen.append(len(x))
        y = x @ dequantised(Quantised(*weight), 64, torch.float32).t()
        y = y if bias is None else y + bias
        y = y.relu() if activation else y
        return y if residual is None else residual.add_(y)

    products = SimpleNamespace(product=product, takes_product=lambda x, *_: len(x) < 4)
    backend = SimpleNamespace(few_rows=products, rounded_rows=rounded_rows)
    if kind == "float8":
        linear = Float8Linear(numbers, bias, "relu").with_backend(backend)
        assert torch.equal(
            linear._linear.weight.view(torch.uint8)[:24], stored(held).q.view(torch.uint8)
        )
    else:
        linear = NarrowLinear(held, bias, "relu").with_backend(backend)
    assert isinstance(linear, FewRowsLinear) and linear.num_columns == 24
    expected = x @ numbers.t() + bias
    torch.testing.assert_close(linear(x[:3]), expected[:3].relu())
    torch.testing.assert_close(linear.add(torch.ones(3, 24), x[:3]), expected[:3] + 1)
    torch.testing.assert_close(linear.without_bias(x[:3])[0] + bias, expected[:3])
    assert seen == [3, 3, 3]
    if kind != "float8":
        torch.testing.assert_close(linear(x), expected.relu())
        none = linear.with_backend(SimpleNamespace(few_rows=None))
        assert isinstance(none, NarrowLinear)
    assert seen == [3, 3, 3]


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("is_quantised", [False, True], ids=["floats", "integers"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    "kind", ["m2m_100", "marian-separate", "t5", "rnn", "FireRedASR", "causal-gemma3"]
)
def test_a_model_on_a_gpu_is_that_of_the_numbers(
    kind, dtype, is_quantised, tmp_path, monkeypatch, device, backend
):
    """Its layers are those of a GPU here, where a CPU without such a device has them in float32."""
    if backend == "native":
        pytest.skip("on a CPU integers are packed for it")
    [directory] = saved(kind, tmp_path / kind)
    if is_quantised:
        pybeam.quantize(directory, tmp_path / "quantised", dtype=dtype)
        directory = tmp_path / "quantised"
    options = dict(device=device, dtype="auto" if is_quantised else dtype)
    if device.type == "cpu":
        monkeypatch.setattr(weights, "can_pack", lambda *_: False)
        options |= {} if kind == "rnn" else {"cache_dtype": "float32"}
    ours = load_model(directory, **options)
    assert isinstance(ours.output, NarrowLinear)

    def plain(weight, bias, activation):
        return PlainLinear(wide(weight, ours.dtype), bias, activation)

    monkeypatch.setattr(narrow, "NarrowLinear", plain)
    theirs = load_model(directory, **options)
    assert type(theirs.output) is PlainLinear
    sources = [[5, 7, 9], [6, 8]]
    if ours.takes_features:
        sources = [random_features(1, num_features=14)[0]]
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=5)
    found, expected = (
        pybeam.Decoder(model, algorithm, backend=backend).decode(sources)
        for model in (ours, theirs)
    )
    if device.type == "cpu":
        assert_alike(found, expected)
    assert all(result.hypotheses for result in found)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int4])
def test_other_devices_are_refused(dtype):
    problem = (
        rf"must not be {dtype} on xpu, because integers are for CPUs .* use 'float16' or 'bfloat16'"
    )
    with pytest.raises(ValueError, match=problem):
        few_bits.check_device(dtype, torch.device("xpu"))


@pytest.mark.parametrize(
    ("dtype", "layer"),
    [("int8", NarrowLinear), ("int4", NarrowLinear), ("float8_e4m3fn", Float8Linear)],
)
def test_layers_without_memory_are_those_of_a_gpu(dtype, layer, tmp_path):
    save_tiny_model(tmp_path, "m2m_100", d_model=64, decoder_ffn_dim=64)
    model = load_model(tmp_path, device="meta", dtype=dtype)
    assert type(model.output) is layer
    assert model.output.weight.device.type == "meta"


def test_older_gpus_are_refused_by_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for capability in ((7, 5), (8, 0)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device, own=capability: own)
        refused = pytest.raises(ValueError, match=r"`dtype` must not be torch.int8 on cuda, .*8.0")
        with refused if capability < (8, 0) else nullcontext():
            few_bits.check_device(torch.int8, torch.device("cuda"))


def test_numbers_are_rounded_once_for_many_rows():
    weight = quantise(torch.randn(8, 64))
    wide = dequantised(stored(weight), 64, torch.bfloat16)
    exact = weight.q.float() * weight.scale[:, None]
    assert torch.equal(wide, exact.to(torch.bfloat16))
