"""`turn_heads`: queries and keys get their norms, and turn by the angles of their positions."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import load

NUM_POSITIONS = 50
# H, G, D, and half of the numbers of a head that are turned; 0: none is
SHAPES = [
    *((1, 1, 2, 1), (4, 2, 12, 6), (2, 2, 80, 40), (3, 1, 96, 10), (5, 3, 7, 2)),
    *((16, 8, 128, 64), (2, 3, 8, 0), (1, 2, 1, 0)),
]


def norms_of(size: int, device: torch.device, has_bias: bool = False) -> list[tuple]:
    """Norms of queries and of keys, which differ in all that they have."""
    weight, bias = torch.randn(2, 2, size, device=device)
    return [(weight[i], bias[i] if has_bias else None, (1e-3, 0.5)[i]) for i in range(2)]


def angles_of(num_rows: int, half: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Positions of rows, and cosines and sines, which are no longer than 1 together."""
    position = torch.randint(NUM_POSITIONS, (num_rows,), dtype=torch.int32, device=device)
    angle = torch.arange(NUM_POSITIONS)[:, None] * torch.logspace(0, -4, half)
    return position, angle.cos().to(device), angle.sin().to(device)


def exact(heads, num_heads, norms, angles) -> torch.Tensor:
    """In float64, the turn as a product of complex numbers."""
    parts = []
    for i, x in enumerate(heads.double().split((num_heads, heads.shape[1] - num_heads), 1)):
        if norms is not None:
            weight, bias, epsilon = norms[i]
            if bias is not None:
                x = x - x.mean(-1, keepdim=True)
            x = x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()
            x = x if bias is None else x + bias.double()
        if angles is not None:
            position, cos, sin = angles
            a, b, rest = x.tensor_split((cos.shape[1], 2 * cos.shape[1]), -1)
            turn = torch.complex(cos.double(), sin.double())[position.long()][:, None]
            y = torch.complex(a, b) * turn
            x = torch.cat((y.real, y.imag, rest), -1)
        parts.append(x)
    return torch.cat(parts, 1)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(("num_heads", "num_key_heads", "size", "half"), SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 9])
def test_as_its_formula(backend, device, num_rows, num_heads, num_key_heads, size, half, has_norms):
    num = num_heads + num_key_heads
    # heads of values stand behind, and the rows of another product beside
    joint = 3 * torch.randn(num_rows, num + num_key_heads + 1, size, device=device)
    before, heads = joint.clone(), joint[:, 1 : 1 + num]
    norms = norms_of(size, device) if has_norms else None
    angles = angles_of(num_rows, half, device) if half else None
    turn_heads = load(backend).turn_heads
    found = turn_heads(heads, num_heads, norms, angles)
    assert [part.shape[1] for part in found] == [num_heads, num_key_heads]
    y = torch.cat(found, 1)
    expected = exact(before[:, 1 : 1 + num], num_heads, norms, angles)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for place in (0, *range(1 + num, joint.shape[1])):
        assert torch.equal(joint[:, place], before[:, place])
    if num_rows:
        # a row does not depend on the others
        last = before[-1:, 1 : 1 + num].contiguous()
        own = angles and (angles[0][-1:], *angles[1:])
        assert torch.equal(torch.cat(turn_heads(last, num_heads, norms, own), 1), y[-1:])


def test_by_hand(backend, device):
    """A query and a key at positions 0 and 1, whose last number does not turn; then two with norms."""
    heads = torch.tensor([[[1.0, 7.0, 0.0], [0.0, 1.0, 7.0]]] * 2, device=device)
    cos, sin = (
        torch.tensor([[1.0], [0.0]], device=device),
        torch.tensor([[0.0], [1.0]], device=device),
    )
    position = torch.tensor([0, 1], dtype=torch.int32, device=device)
    query, key = load(backend).turn_heads(heads, 1, None, (position, cos, sin))
    assert torch.cat((query, key), 1).tolist() == [[[1, 7, 0], [0, 1, 7]], [[-7, 1, 0], [-1, 0, 7]]]
    heads = torch.tensor([[[3.0, 3.0], [3.0, 3.0]]], device=device)
    weight = torch.tensor([2.0, 4.0], device=device)
    norms = (weight, None, 0.0), (weight / 4, None, 27.0)
    query, key = load(backend).turn_heads(heads, 1, norms, None)
    assert query.tolist() == [[[2, 4]]] and key.tolist() == [[[0.25, 0.5]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_are_rounded_before_they_turn(backend, device, dtype):
    if backend == "native" and dtype != torch.float32:
        pytest.skip("the operators take float32")
    heads = torch.randn(5, 6, 48, device=device).to(dtype)
    norms = [(weight.to(dtype), *rest) for weight, *rest in norms_of(48, device)]
    angles, turn_heads, apart = angles_of(5, 24, device), load(backend).turn_heads, heads.clone()
    found = turn_heads(heads, 4, norms, angles)
    apart = torch.cat(turn_heads(apart, 4, norms, None), 1)
    for own, other in zip(found, turn_heads(apart, 4, None, angles), strict=True):
        assert torch.equal(own, other)


def test_nan_stays_in_its_head(backend, device):
    heads = torch.randn(3, 4, 8, device=device)
    heads[1, 2, 5] = float("nan")
    norms, angles = norms_of(8, device), angles_of(3, 4, device)
    query, key = load(backend).turn_heads(heads, 2, norms, angles)
    assert not query.isnan().any()
    assert key[1, 0].isnan().all() and key.isnan().sum() == 8


def test_layer_norms(backend, device):
    """They subtract the mean, and add a bias."""
    heads, norms, angles = torch.randn(3, 4, 8), norms_of(8, device, True), angles_of(3, 4, device)
    heads = heads.to(device)
    expected = exact(heads, 3, norms, angles)
    y = torch.cat(load(backend).turn_heads(heads, 3, norms, angles), 1)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
