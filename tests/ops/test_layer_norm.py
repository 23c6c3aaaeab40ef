"""The operator `layer_norm`: exact to rounding, every row on its own."""

from __future__ import annotations

import pytest
import torch

from pybeam.models.transformer.norms import Norm


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("size", [1, 3, 16, 37, 256])
@pytest.mark.parametrize("num_rows", [0, 1, 33, 200])
def test_layer_norm(isa, num_rows, size):
    weight, bias = torch.randn(size), torch.randn(size)
    norm = Norm(weight, bias, 1e-3, is_packed=True)
    wide = 3 + 5 * torch.randn(num_rows, size + 7)
    x = wide[:, 2 : 2 + size]
    expected = torch.nn.functional.layer_norm(
        x.double(), (size,), weight.double(), bias.double(), 1e-3
    )
    y = norm(x)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)
    if num_rows:
        assert torch.equal(norm(x[-1:]), y[-1:])
        wide[0, 2] = float("nan")
        y = norm(x)
        assert y[0].isnan().all() and not y[1:].isnan().any()


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(4), "`x` must have 2 dimensions"),
        (torch.zeros(2, 4).double(), torch.zeros(4), "`x` must be float32"),
        (torch.zeros(4, 2).t(), torch.zeros(4), "the last stride of `x` must be 1"),
        (torch.zeros(2, 4), torch.zeros(5), "`weight` must be"),
    ],
)
def test_wrong_arguments_of_layer_norm(x, weight, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        native.layer_norm(x, weight, torch.zeros(4), 1e-5)
