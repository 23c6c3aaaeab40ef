"""Every backend has the functions of `Backend`, and one that cannot decode is refused at once."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends import (
    Backend,
    absent,
    defaults,
    launchers,
    reference,
    torch_automata,
    torch_layers,
    torch_places,
)
from pybeam.cli.info import backend_lines
from support.search_models import random_model

# the functions whose parameters stand in another module than `Backend`
STATED = {
    reference: "gather_rows scatter_rows backtrace",
    torch_automata: "automaton_walk automaton_columns automaton_logits",
    torch_places: "automaton_places",
    torch_layers: "linear embed layer_norm rms_norm add_norm gated soft_cap prompt_attention glu "
    "lstm_cell mixture",
    defaults: "log_softmax rounded_rows",
}


def parameters(function) -> list[str]:
    """The names of a function's parameters, or of an operator's arguments."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return [argument.name for argument in schema.arguments]
    every = inspect.signature(function).parameters.values()
    return [p.name for p in every if p.kind != p.KEYWORD_ONLY]


CONTRACT = {
    name: parameters(function)[1:]
    for name, function in vars(Backend).items()
    if inspect.isfunction(function) and not name.startswith("_")
}
for stated, names in STATED.items():
    CONTRACT |= {name: parameters(getattr(stated, name)) for name in names.split()}


@pytest.mark.parametrize("name", backends.available())
def test_functions_are_those_of_the_contract(name):
    module = backends.load(name)
    assert len(CONTRACT) == 27
    for function, expected in CONTRACT.items():
        # the outputs of some operators have another name in their schema
        actual = ["out" if each == "y" else each for each in parameters(getattr(module, function))]
        assert actual == expected, function


def test_native_cannot_decode_on_a_gpu():
    """Some of its operators run there, others do not: the decoder says so before it decodes."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(
        ValueError, match=r"on cuda, but is 'native', .* tree_append.* backend='auto'"
    ):
        backends.for_decoding("native", torch.device("cuda"))
    assert backends.for_decoding("native", torch.device("cpu")) is backends.load("native")


def test_a_decoder_asks():
    """The backend is that of its model's device."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    model = random_model(1)
    model.device = torch.device("cuda")
    with pytest.raises(ValueError, match="`backend` must be one that decodes on cuda"):
        pybeam.Decoder(model, pybeam.greedy(), backend="native")


def test_triton_cannot_decode_on_a_cpu(monkeypatch):
    monkeypatch.setattr(
        backends, "load", lambda name: SimpleNamespace(__name__=f"pybeam.backends.{name}")
    )
    monkeypatch.setattr(backends, "is_interpreting", lambda: False)
    with pytest.raises(ValueError, match="decodes on cpu, but is 'triton'"):
        backends.for_decoding("triton", torch.device("cpu"))
    monkeypatch.setattr(backends, "is_interpreting", lambda: True)
    backends.for_decoding("triton", torch.device("cpu"))


@pytest.mark.parametrize(
    ("files", "error", "why"),
    [
        ([], ModuleNotFoundError("pybeam._C"), "this installation has no compiled kernels"),
        (["_C.cpython-39-x.so"], ModuleNotFoundError("pybeam._C"), "for another Python or machine"),
        (["_C.abi3.so"], ImportError("undefined symbol: _ZN3c10"), "undefined symbol: _ZN3c10"),
    ],
)
def test_absent_kernels_have_a_reason_and_a_remedy(files, error, why, tmp_path):
    """A symbol that torch lacks is not a compiler that is missing."""
    package = tmp_path / "pybeam"
    package.mkdir()
    for name in files:
        (package / name).touch()
    text = absent.reason(error, package)
    assert why in text and all(name in text for name in files)
    assert "pip install --force-reinstall --no-deps pybeam-search" in text
    (tmp_path / "csrc").mkdir()
    assert "run `make build`" in absent.reason(error, package)


def test_decoding_without_kernels_warns_once(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, logger="pybeam")
    cached_ones = (backends._warn_without_kernels, backends._log_fallback)
    for cached in (backends.load, backends.available, *cached_ones):
        cached.cache_clear()
    monkeypatch.delitem(sys.modules, "pybeam.backends.native", raising=False)
    monkeypatch.setitem(sys.modules, "pybeam._C", None)
    model = random_model(1)
    try:
        with pytest.warns(RuntimeWarning, match=r"decoding will be slow: .*; run `"):
            pybeam.Decoder(model, pybeam.greedy())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pybeam.Decoder(model, pybeam.greedy())
            pybeam.Decoder(model, pybeam.greedy(), backend="reference")
        assert caplog.text.count("falling back to plain torch, which is slow: ") == 1
    finally:
        monkeypatch.undo()
        for cached in (backends.load, backends.available):
            cached.cache_clear()


def test_a_missing_triton_names_its_extra(monkeypatch):
    backends.load.cache_clear()
    monkeypatch.setattr(backends, "is_interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in [name for name in sys.modules if name.startswith("pybeam.triton_kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pybeam.backends.triton", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match=r"pip install 'pybeam-search\[gpu\]'"):
        backends.load("triton")


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    """A machine with a GPU, and neither a C compiler nor the headers of Python."""
    monkeypatch.setattr(backends, "is_interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(launchers.sysconfig, "get_path", lambda name, scheme=None: str(tmp_path))
    load = backends.load
    load.cache_clear()
    yield f"there is no C compiler and no {tmp_path / 'Python.h'}; install gcc and the headers"
    load.cache_clear()


def test_a_triton_without_a_compiler_says_what_to_install(without_compiler):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=f"cannot compile its driver: {without_compiler}"):
        backends.load("triton")


def test_info_says_what_launchers_need(without_compiler, monkeypatch):
    monkeypatch.setattr(backends, "load", lambda name: None)
    [line] = [line for line in backend_lines() if line.startswith("triton")]
    assert (
        line.startswith("triton: available, but it compiles launchers") and without_compiler in line
    )


def test_triton_compiles_where_nothing_is_missing(tmp_path):
    build = pytest.importorskip("triton.runtime.build")
    if problem := launchers.problem():
        pytest.skip(problem)
    source = tmp_path / "launcher.c"
    source.write_text("#include <Python.h>\nPyObject *PyInit_launcher(void) { return NULL; }\n")
    assert build._build("launcher", str(source), str(tmp_path), [], [], [], [])


def test_the_log_says_why_steps_are_not_captured(caplog):
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy())
    decoder.model = SimpleNamespace(
        device=torch.device("cuda"), can_capture=False, why_not_captured="its steps ask Python"
    )
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="pybeam"):
        assert not decoder._decide_on_graphs(None) and not decoder._decide_on_graphs(False)
    said = "steps are not captured as CUDA graphs: its steps ask Python"
    assert [record.getMessage() for record in caplog.records] == [said]
