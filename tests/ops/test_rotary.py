"""The operator `rotary`: pairs of numbers turn by the angles of their row's position.

Triton has it inside `turn_heads`.
"""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import load, torch_heads
from support.threads import every_thread_count


def table_of(num_positions: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(num_positions)[:, None] * torch.logspace(0, -4, half)
    return angle.cos(), angle.sin()


def exact(x, position, cos, sin) -> torch.Tensor:
    """As the product of complex numbers."""
    a, b = x.double().chunk(2, -1)
    turn = torch.complex(cos.double(), sin.double())[position.long()][:, None]
    y = torch.complex(a, b) * turn
    return torch.cat((y.real, y.imag), -1)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("size", [2, 6, 32, 34, 128])
@pytest.mark.parametrize("num_rows", [0, 1, 33, 200])
def test_as_complex_numbers(isa, num_rows, size):
    joint = torch.randn(num_rows, 5, size)
    position = torch.randint(0, 50, (num_rows,), dtype=torch.int32)
    cos, sin = table_of(50, size // 2)
    x = joint[:, 1:4]
    rotary = load("native").rotary
    y = rotary(x, position, cos, sin)
    assert y.shape == x.shape and y.is_contiguous()
    torch.testing.assert_close(y.double(), exact(x, position, cos, sin), rtol=1e-5, atol=1e-6)
    if num_rows:
        assert torch.equal(rotary(x[-1:], position[-1:], cos, sin), y[-1:])


@pytest.mark.parametrize("name", ["native", "torch"])
def test_by_hand(name):
    rotary = torch_heads.rotary
    if name == "native":
        rotary = pytest.importorskip("pybeam.backends.native", exc_type=ImportError).rotary
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[1.0, 2.0, 3.0, 4.0]]])
    cos = torch.tensor([[1.0, 1.0], [0.0, -1.0]])
    sin = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    y = rotary(x, torch.tensor([0, 1], dtype=torch.int32), cos, sin)
    assert y.tolist() == [[[1, 2, 3, 4]], [[-3, -2, 1, -4]]]


def test_any_team(isa):
    native, x = load("native"), torch.randn(201, 4, 66)
    cos, sin = table_of(300, 33)
    position = torch.randint(0, 300, (201,), dtype=torch.int32)
    torch.set_num_threads(1)
    expected = native.rotary(x, position, cos, sin)
    for _ in every_thread_count():
        assert torch.equal(native.rotary(x, position, cos, sin), expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(x=torch.zeros(2, 4)), ValueError, "`x` must have 3 dimensions, but has 2"),
        (dict(x=torch.zeros(2, 1, 4).double()), ValueError, "`x` must be float32"),
        (dict(x=torch.zeros(2, 1, 5)), ValueError, "the last size of `x` must be even, but is 5"),
        (dict(x=torch.zeros(2, 4, 3).mT), ValueError, "the last stride of `x` must be 1"),
        (dict(position=torch.zeros(3).int()), ValueError, r"`position` must be \[2\]"),
        (dict(cos=torch.zeros(9, 3)), ValueError, r"`cos` must be \[9, 2\]"),
        (dict(sin=torch.zeros(8, 2)), ValueError, r"`sin` must be \[9, 2\]"),
        (dict(position=torch.tensor([0, 9]).int()), RuntimeError, "must be from 0 to 8, but is 9"),
        (dict(position=torch.tensor([-1, 0]).int()), RuntimeError, "from 0 to 8, but is -1"),
    ],
)
def test_wrong_arguments(change, error, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    given = dict(
        x=torch.zeros(2, 1, 4),
        position=torch.zeros(2).int(),
        cos=torch.zeros(9, 2),
        sin=torch.zeros(9, 2),
    )
    with pytest.raises(error, match=message):
        native.rotary(*(given | change).values())
