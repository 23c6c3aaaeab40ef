"""`add_norm`: residual, bias and norm in one kernel, as one after another."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import torch_layers
from pybeam.triton_kernels.layers import add_norm

CASES = [
    pytest.param(has_bias, has_shift, id=f"{'bias' * has_bias} {'shift' * has_shift}")
    for has_bias in (True, False)
    for has_shift in (True, False)
]


def arguments(num_rows: int, size: int, has_bias: bool, has_shift: bool, dtype, device) -> list:
    x, y = (torch.randn(num_rows, size) for _ in range(2))
    bias, weight, shift = torch.randn(3, size)
    given = [x, y, bias if has_bias else None, weight, shift if has_shift else None]
    return [None if one is None else one.to(device, dtype) for one in given]


@pytest.mark.parametrize("size", [1, 24, 256, 1025])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
@pytest.mark.parametrize(("has_bias", "has_shift"), CASES)
def test_as_one_after_another(device, num_rows, size, has_bias, has_shift):
    given = arguments(num_rows, size, has_bias, has_shift, torch.float32, device)
    states, expected_states = given[0].clone(), given[0].double()
    wide = [None if one is None else one.double() for one in given[1:]]
    expected = torch_layers.add_norm(expected_states, *wide, 1e-3)
    y = add_norm(states, *given[1:], 1e-3)
    torch.testing.assert_close(states.double(), expected_states, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    if num_rows:
        # a row does not depend on the others
        last = given[0][-1:].clone()
        assert torch.equal(add_norm(last, given[1][-1:], *given[2:], 1e-3), y[-1:])
        assert torch.equal(last, states[-1:])


def test_the_norm_is_that_of_what_is_kept(device):
    """In bfloat16 the sum is rounded first, as if it had been written and read again."""
    given = arguments(3, 40, True, True, torch.bfloat16, device)
    states = given[0].clone()
    y = add_norm(states, *given[1:], 1e-5)
    norm = torch_layers.layer_norm(states.float(), *(one.float() for one in given[3:]), 1e-5)
    torch.testing.assert_close(y.float(), norm, rtol=2**-7, atol=1e-3)
    total = sum(one.float() for one in given[:3])
    # the interpreter cuts bits off where a GPU rounds
    torch.testing.assert_close(states.float(), total, rtol=2**-7, atol=1e-6)


def test_nan_stays_in_its_row(device):
    x, y, bias, weight, shift = arguments(2, 24, True, True, torch.float32, device)
    y[0, 3] = float("nan")
    out = add_norm(x, y, bias, weight, shift, 1e-5)
    assert out[0].isnan().all() and not out[1].isnan().any()
