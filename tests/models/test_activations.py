"""Activations and gates: right to a few units in the last place, and the same bits for equal numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pybeam
from pybeam.models.base import Model
from pybeam.models.linear import ACTIVATIONS, PackedLinear, can_pack
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

# of each function one name
EXACT = {
    "relu": F.relu,
    # torch's own loses all digits of large negative arguments
    "gelu": lambda x: x * 0.5 * torch.special.erfc(-x / math.sqrt(2)),
    "gelu_new": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "silu": F.silu,
    "tanh": torch.tanh,
}
THREADS = (1, 2, 3, 5)
BATCHES = (1, 7, 24)
# with 24 sources of several rows, torch's functions would share such columns among threads
ODD = 515
TRANSFORMERS = ("m2m_100", "mbart", "bart", "marian", "fsmt")
# kind and activation
EVERY_MODEL = [
    *((kind, name) for kind in TRANSFORMERS for name in EXACT),
    ("Speech2Text", "relu"),
    ("Whisper", "gelu"),
    ("rnn", "tanh"),
]
SOME_MODELS = [*EVERY_MODEL[: len(EXACT)], ("marian", "silu"), *EVERY_MODEL[-3:]]


def test_every_function_is_here():
    assert {ACTIVATIONS[name] for name in EXACT} == set(ACTIVATIONS.values())


@contextmanager
def threads(num: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def arguments() -> Tensor:
    """Small, large, of both signs, and many where functions bend."""
    small = torch.logspace(-30, 1.9, 3001)
    around = torch.linspace(-14, 14, 20001)
    return torch.cat((small, -small, around, torch.zeros(1)))


def assert_near(y: Tensor, exact, *x: Tensor) -> None:
    """As if each argument and then the result had been moved by 3 units in the last place."""
    x = [one.double().requires_grad_() for one in x]
    expected = exact(*x)
    slopes = torch.autograd.grad(expected.sum(), x)
    moved = sum((one * slope).abs() for one, slope in zip(x, slopes, strict=True)).detach()
    allowed = 3 * 2.0**-23 * (moved + expected.detach().abs()) + 1e-35
    excess = (y.double() - expected.detach()).abs() - allowed
    assert excess.max() <= 0


@pytest.mark.parametrize("name", EXACT)
def test_activations_are_exact_to_a_few_units_in_the_last_place(isa, name):
    x = arguments()
    y = PackedLinear(torch.ones(1, 1), None, name)(x[:, None])[:, 0]
    assert_near(y, EXACT[name], x)


@pytest.mark.parametrize("name", EXACT)
def test_activations_of_what_is_no_number_and_of_the_largest(isa, name):
    layer = PackedLinear(torch.ones(65, 1), None, name)
    inf, most = float("inf"), torch.finfo(torch.float32).max
    y = layer(torch.tensor([[float("nan")], [inf], [most], [-most], [1.0]]))
    at_most = 1.0 if name == "tanh" else most
    assert y[0].isnan().all()
    assert (y[1] == (1.0 if name == "tanh" else inf)).all()
    assert (y[2] == at_most).all()
    assert (y[3] == (-1.0 if name == "tanh" else 0.0)).all()
    assert y[4].isfinite().all()


@pytest.mark.thinned()
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("num_columns", [1, 63, 64, 65, 200])
def test_a_value_depends_on_its_argument_alone(isa, name, num_columns):
    """Equal columns are equal, and so is a row in whatever place."""
    layer = PackedLinear(torch.ones(num_columns, 1), None, name)
    x = 3 * torch.randn(101, 1)
    y = layer(x)
    assert torch.equal(y, y[:, :1].expand_as(y))
    order = torch.randperm(101)
    assert torch.equal(layer(x[order]), y[order])


@pytest.mark.thinned()
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("num_threads", THREADS)
def test_a_layer_does_not_depend_on_batch_and_threads(isa, name, num_threads):
    generator = torch.Generator().manual_seed(1)
    layer = PackedLinear(torch.randn(ODD, 33, generator=generator), torch.randn(ODD), name)
    x = torch.randn(123, 33)
    with threads(1):
        expected = layer(x)
    with threads(num_threads):
        for batch in (*BATCHES, 123):
            assert torch.equal(layer(x[-batch:]), expected[-batch:])


def lstm_cell(gates: Tensor, cell: Tensor) -> Tensor:
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return torch.stack((o.sigmoid() * cell.tanh(), cell))


@pytest.mark.parametrize("size", [0, 1, 5, 16, 37, 301])
def test_gates_are_exact_and_every_row_is_on_its_own(isa, size):
    x, cell = 3 * torch.randn(101, 4 * size + 3)[:, 3:], torch.randn(101, 2, size)[:, 1]
    glu, lstm = torch.ops.pybeam.glu.default, torch.ops.pybeam.lstm_cell.default
    with threads(1):
        y, state = glu(x[:, : 2 * size]), lstm(x, cell)
    exact = F.glu(x[:, : 2 * size].double()), lstm_cell(x.double(), cell.double())
    torch.testing.assert_close(y.double(), exact[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(torch.stack(state).double(), exact[1], rtol=1e-5, atol=1e-6)
    for num_threads in THREADS:
        with threads(num_threads):
            for rows in (slice(0, 1), slice(3, 101), slice(100, 101)):
                assert torch.equal(glu(x[rows, : 2 * size]), y[rows])
                for ours, expected in zip(lstm(x[rows], cell[rows]), state, strict=True):
                    assert torch.equal(ours, expected[rows])


@pytest.mark.parametrize(
    ("op", "given", "message"),
    [
        ("glu", [torch.zeros(3, 5)], "`x` must have a multiple of 2 columns, but has 5"),
        ("glu", [torch.zeros(3, 4).double()], "`x` must be float32"),
        ("glu", [torch.zeros(4)], "`x` must have 2 dimensions"),
        ("glu", [torch.zeros(4, 4).t()], "the last stride of `x` must be 1"),
        ("lstm_cell", [torch.zeros(3, 6), torch.zeros(3, 1)], "`gates` must have a multiple of 4"),
        ("lstm_cell", [torch.zeros(3, 8), torch.zeros(2, 2)], "`cell` must be"),
        ("lstm_cell", [torch.zeros(2, 8), torch.zeros(2, 2).t()], "the last stride of `cell`"),
    ],
)
def test_wrong_arguments_of_gates(op, given, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        getattr(native, op)(*given)


def model_and_sources(directory: Path, kind: str, activation: str) -> tuple[Model, list]:
    """A tiny model with inner layers of an odd size, and 24 sources."""
    torch.manual_seed(4)
    sizes = dict(encoder_ffn_dim=ODD, decoder_ffn_dim=ODD)
    sources = [torch.randint(3, 30, (1 + 5 * i % 17,)).tolist() for i in range(max(BATCHES))]
    if kind == "rnn":
        save_tiny_rnn(directory, hidden_size=131)
    elif kind in ("Speech2Text", "Whisper"):
        # an odd number of channels
        sizes |= dict(conv_channels=202) if kind == "Speech2Text" else {}
        save_tiny_speech_model(directory, kind=kind, activation_function=activation, **sizes)
        sources = random_features(max(BATCHES), longest=40)
    else:
        save_tiny_model(directory, kind, activation_function=activation, **sizes)
    return pybeam.load_model(directory, device="cpu"), sources


def scores(model: Model, sources: Sequence, batch: int, num_threads: int) -> list:
    search = pybeam.fixed_beam(3, n_best=2, max_length=7)
    with threads(num_threads):
        results = pybeam.Decoder(model, search, pybeam.Batch(batch)).decode(sources)
    assert all(result.error is None for result in results)
    return [[(h.tokens, h.score, h.final_score) for h in result.hypotheses] for result in results]


def check_scores(directory: Path, kind: str, activation: str, runs: Sequence) -> None:
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("there is no C++ extension for this CPU")
    model, sources = model_and_sources(directory, kind, activation)
    expected = scores(model, sources, max(BATCHES), 1)
    for batch, num_threads in runs:
        assert scores(model, sources, batch, num_threads) == expected, (batch, num_threads)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(("kind", "activation"), SOME_MODELS)
def test_scores_do_not_depend_on_batch_and_threads_to_the_last_bit(tmp_path, kind, activation):
    check_scores(tmp_path, kind, activation, [(7, 3), (24, 5)])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "activation"), EVERY_MODEL)
def test_scores_are_the_same_in_every_batch_on_any_threads(tmp_path, kind, activation):
    runs = [(batch, num_threads) for batch in BATCHES for num_threads in THREADS]
    check_scores(tmp_path, kind, activation, runs)
