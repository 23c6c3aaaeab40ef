"""Sums and norms in one call are those of one call after another, in every kind of network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import pybeam
from pybeam import backends
from pybeam.backends import torch_layers
from pybeam.backends.torch_layers import FUNCTIONS
from pybeam.engine.workspace import Workspace
from pybeam.models import float8, load_model
from pybeam.models.float8 import Float8Linear
from pybeam.models.transformer.norms import Norm, add_and_norm
from support.built_in_models import saved
from support.device_loop import assert_alike, run
from support.tiny_models import save_tiny_model

# norms first, norms last, and norms without a mean
KINDS = ("m2m_100", "bart", "t5", "causal-qwen3")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_within_norms(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    if kind.startswith("causal"):
        saved(kind, tmp_path)
    else:
        save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    sums = []

    def add_norm(x, *given):
        sums.append(len(x))
        return torch_layers.add_norm(x, *given)

    normed = []

    def product(x, weight, bias, activation, residual, norm, ahead=None):
        """The kernel's formula, which stands in its docstring."""
        normed.append(norm is not None)
        if norm is not None:
            x = Norm(*norm)(x)
        y = FUNCTIONS[activation](F.linear(x, weight, bias))
        return y if residual is None else residual.add_(y)

    reference = vars(backends.load("reference"))
    apart, together = (
        SimpleNamespace(**{**reference, "add_norm": add_norm, "adds_in_products": adds})
        for adds in (True, False)
    )
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8]]
    expected, stats = run(Workspace(model, algorithm, apart), pybeam.Batch(2), requests)
    assert not sums
    results, _ = run(Workspace(model, algorithm, together), pybeam.Batch(2), requests)
    assert_alike(results, expected)
    assert len(sums) >= stats.steps
    products = SimpleNamespace(product=product, takes_product=lambda *_: True)
    inside = SimpleNamespace(**{**vars(together), "few_rows": products})
    results, _ = run(Workspace(model, algorithm, inside), pybeam.Batch(2), requests)
    assert_alike(results, expected)
    # a norm behind the sum is the residual of the next sublayer, too
    assert any(normed) == (kind != "bart")


def test_a_product_in_eight_bits_adds_its_own_bias(monkeypatch):
    def product(p, p_scale, q, q_scale):
        return (p.float() @ q.float().t()) * p_scale[:, None] * q_scale

    monkeypatch.setattr(float8, "scaled_product", product)
    linear = Float8Linear(torch.randn(32, 16), torch.randn(32))
    norm = Norm(torch.randn(32), torch.randn(32))
    x, y = torch.randn(3, 32), torch.randn(3, 16)
    expected = x + linear(y)
    together = SimpleNamespace(add_norm=torch_layers.add_norm, adds_in_products=False)
    states, read = add_and_norm(together, linear, norm, x.clone(), y)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(read, norm(expected))
