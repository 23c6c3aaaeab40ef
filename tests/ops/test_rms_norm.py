"""The operator `rms_norm`: exact to rounding, every row on its own; `test_turn_heads.py` norms heads."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import load
from support.threads import every_thread_count


def exact(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("size", [1, 3, 16, 37, 256])
@pytest.mark.parametrize("num_rows", [0, 1, 33, 200])
def test_as_its_formula(kernel, device, num_rows, size):
    weight = torch.randn(size, device=device)
    wide = (3 + 5 * torch.randn(num_rows, size + 7)).to(device)
    x = wide[:, 2 : 2 + size]
    rms_norm = load(kernel).rms_norm
    y = rms_norm(x, weight, 1e-3)
    torch.testing.assert_close(y.double(), exact(x, weight, 1e-3), rtol=2e-6, atol=1e-6)
    if num_rows:
        assert torch.equal(rms_norm(x[-1:], weight, 1e-3), y[-1:])
        wide[0, 2] = float("nan")
        y = rms_norm(x, weight, 1e-3)
        assert y[0].isnan().all() and not y[1:].isnan().any()


def test_zeros_stay_zeros(backend, device):
    y = load(backend).rms_norm(torch.zeros(2, 5, device=device), torch.ones(5, device=device), 1e-6)
    assert (y == 0).all()


def test_any_team(isa):
    native, x, weight = load("native"), torch.randn(201, 4, 128), torch.randn(128)
    torch.set_num_threads(1)
    expected = native.rms_norm(x, weight, 1e-6)
    for _ in every_thread_count():
        assert torch.equal(native.rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(4), torch.zeros(4), "`x` must have 2 or 3 dimensions, but has 1"),
        (torch.zeros(2, 4).double(), torch.zeros(4), "`x` must be float32"),
        (torch.zeros(4, 2).t(), torch.zeros(4), "the last stride of `x` must be 1"),
        (torch.zeros(2, 4), torch.zeros(5), "`weight` must be"),
    ],
)
def test_wrong_arguments(x, weight, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        native.rms_norm(x, weight, 1e-5)
