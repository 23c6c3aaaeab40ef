"""Every backend has the functions of `Backend`, and one that cannot decode is refused at once."""

from __future__ import annotations

import inspect

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends import Backend
from support.search_models import random_model

CONTRACT = {
    name: [*inspect.signature(function).parameters][1:]
    for name, function in vars(Backend).items()
    if inspect.isfunction(function) and not name.startswith("_")
}


def parameters(function) -> list[str]:
    """The names of a function's parameters, or of an operator's arguments."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return [argument.name for argument in schema.arguments]
    every = inspect.signature(function).parameters.values()
    return [p.name for p in every if p.kind != p.KEYWORD_ONLY]


@pytest.mark.parametrize("name", backends.available())
def test_functions_are_those_of_the_contract(name):
    module = backends.load(name)
    assert len(CONTRACT) == 19
    for function, expected in CONTRACT.items():
        # the outputs of some operators have another name in their schema
        actual = ["out" if each == "y" else each for each in parameters(getattr(module, function))]
        assert actual == expected, function


def test_native_cannot_decode_on_a_gpu():
    """Some of its operators run there, others do not: the decoder says so before it decodes."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(
        ValueError, match=r"on cuda, but is 'native', .* beam_open.* backend='auto'"
    ):
        backends.for_decoding("native", torch.device("cuda"))
    assert backends.for_decoding("native", torch.device("cpu")) is backends.load("native")


def test_a_decoder_asks():
    """Of the device that its model is on."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    model = random_model(1)
    model.device = torch.device("cuda")
    with pytest.raises(ValueError, match="`backend` must be one that decodes on cuda"):
        pybeam.Decoder(model, pybeam.greedy(), backend="native")


def test_triton_cannot_decode_on_a_cpu(monkeypatch):
    monkeypatch.setattr(backends, "load", lambda name: object())
    monkeypatch.setattr(backends, "is_interpreting", lambda: False)
    with pytest.raises(ValueError, match="decodes on cpu, but is 'triton'"):
        backends.for_decoding("triton", torch.device("cpu"))
    monkeypatch.setattr(backends, "is_interpreting", lambda: True)
    backends.for_decoding("triton", torch.device("cpu"))
