"""The operators `gated`, a function of half of the columns times the other half, and `soft_cap`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pybeam.backends import load
from pybeam.backends.torch_layers import Activation
from support.threads import every_thread_count

EXACT = {
    Activation.NONE: lambda x: x,
    Activation.RELU: F.relu,
    Activation.GELU: F.gelu,
    Activation.TANH_GELU: lambda x: F.gelu(x, approximate="tanh"),
    Activation.SILU: F.silu,
    Activation.TANH: torch.tanh,
}


@pytest.mark.thinned()
@pytest.mark.parametrize("activation", EXACT)
@pytest.mark.parametrize(("num_rows", "size"), [(0, 4), (1, 1), (1, 300), (33, 37), (5, 0)])
def test_as_its_formula(kernel, device, activation, num_rows, size):
    x = (3 * torch.randn(num_rows, 2 * size + 5)).to(device)[:, 3 : 3 + 2 * size]
    gated = load(kernel).gated
    y = gated(x, activation)
    gate, value = x.double().chunk(2, 1)
    expected = EXACT[activation](gate) * value
    torch.testing.assert_close(y.double(), expected, rtol=3e-6, atol=1e-6)
    assert torch.equal(gated(x[-1:], activation), y[-1:])


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("activation", EXACT)
def test_any_team(isa, activation):
    native, x = load("native"), torch.randn(201, 2 * 100)
    torch.set_num_threads(1)
    expected = native.gated(x, activation)
    for _ in every_thread_count():
        assert torch.equal(native.gated(x, activation), expected)


@pytest.mark.parametrize(
    ("x", "activation", "message"),
    [
        (torch.zeros(3, 5), 4, "`x` must have a multiple of 2 columns, but has 5"),
        (torch.zeros(3, 4).double(), 4, "`x` must be float32"),
        (torch.zeros(4), 4, "`x` must have 2 dimensions"),
        (torch.zeros(4, 4).t(), 4, "the last stride of `x` must be 1"),
        (torch.zeros(3, 4), 6, "`activation` must be 0 to 5, but is 6"),
    ],
)
def test_wrong_arguments(x, activation, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        native.gated(x, activation)


@pytest.mark.parametrize("size", [0, 1, 17, 5000])
def test_soft_cap(backend, device, size):
    x = (50 * torch.randn(3, size)).to(device)
    expected = 30 * (x.double() / 30).tanh()
    load(backend).soft_cap(x, 30.0)
    torch.testing.assert_close(x.double(), expected, rtol=2e-6, atol=1e-6)
