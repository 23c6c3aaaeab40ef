"""`product`: norm, product, bias, activation and residual in one kernel, as one after another."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends import torch_layers
from pybeam.backends.defaults import rounded_rows
from pybeam.backends.int4 import dequantised, quantise_groups
from pybeam.backends.narrow import stored
from pybeam.backends.packing import Quantised, quantise
from pybeam.backends.torch_layers import FUNCTIONS, Activation
from pybeam.triton_kernels.product import Tile, product, takes_product

# rows, columns and depth: none, one, and none of them a multiple of a tile
SHAPES = [(0, 8, 16), (1, 8, 16), (5, 17, 33), (17, 9, 300), (63, 8, 16), (64, 3, 24)]
CASES = [
    (*shape, activation, has_bias, has_residual, norm)
    for shape, activation, has_bias, has_residual, norm in zip(
        2 * SHAPES,
        cycle(Activation),
        cycle((True, False)),
        cycle((0, 0, 1)),
        cycle("- layer rms".split()),
    )
]


def arguments(shape, activation, has_bias, has_residual, norm, dtype, device) -> dict:
    num_rows, num_columns, depth = shape[:3]

    def new(*size: int) -> Tensor:
        return torch.randn(*size).to(device, dtype)

    return dict(
        x=new(num_rows, depth),
        weight=new(num_columns, depth) * max(depth, 1) ** -0.5,
        bias=new(num_columns) if has_bias else None,
        activation=activation,
        residual=new(num_rows, num_columns) if has_residual else None,
        norm=None if norm == "-" else (new(depth), new(depth) if norm == "layer" else None, 1e-3),
    )


def expected_of(given: dict) -> Tensor:
    """One after another, in float64."""
    x, weight, bias, activation, residual, norm = wide(given).values()
    if norm is not None:
        scale, shift, epsilon = norm
        kernel = torch_layers.rms_norm if shift is None else torch_layers.layer_norm
        x = kernel(x, *(part for part in (scale, shift) if part is not None), epsilon)
    y = FUNCTIONS[activation](F.linear(x, weight, bias))
    return y if residual is None else residual + y


def narrow(weight: Tensor, kind: str) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """A matrix in 8 or 4 bits as kernels read it, and the numbers that it stands for."""
    if kind == "int4":
        held = quantise_groups(weight)
        return tuple(stored(held)), dequantised(held).to(weight.dtype)
    held = quantise(weight) if kind == "int8" else Quantised(*rounded_rows(weight))
    return tuple(stored(held)), held.q.float() * held.scale[:, None]


def first(given: dict, num: int) -> dict:
    """The arguments for the first rows, with a residual of their own."""
    residual = given["residual"]
    own = None if residual is None else residual[:num].clone()
    return {**given, "x": given["x"][:num], "residual": own}


def wide(given: dict) -> dict:
    def widened(value):
        if isinstance(value, tuple):
            return tuple(map(widened, value))
        return value.double() if isinstance(value, Tensor) else value

    return {name: widened(value) for name, value in given.items()}


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_one_after_another(case, dtype, device):
    """bfloat16 is not for the interpreter, which multiplies it wrongly."""
    shape, options = case[:3], case[3:]
    given = arguments(shape, *options, dtype, device)
    expected = expected_of(given)
    kept = first(given, shape[0])
    y = product(**kept)
    assert (y is kept["residual"]) == bool(options[2])
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["int8", "int4", "float8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_are_widened(case, kind, dtype, device):
    """The result is that of the numbers which few bits stand for; those of 4 bits become x's dtype."""
    given = arguments(case[:3], *case[3:], dtype, device)
    held, numbers = narrow(given["weight"], kind)
    expected = expected_of({**given, "weight": numbers})
    y = product(**{**first(given, case[0]), "weight": held})
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["int8", "int4", "float8"])
def test_a_row_of_few_bits_does_not_depend_on_how_many_there_are(kind, device):
    given = arguments((64, 8, 40), Activation.GELU, True, True, "layer", torch.float32, device)
    given["weight"], _ = narrow(given["weight"], kind)
    every = product(**first(given, 64))
    for num_rows in (1, 16, 33):
        assert torch.equal(product(**first(given, num_rows)), every[:num_rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("norm", ["-", "layer", "rms"])
@pytest.mark.parametrize("num_rows", [1, 16, 33])
def test_a_row_does_not_depend_on_how_many_there_are(num_rows, norm, dtype, device):
    given = arguments((64, 8, 40), Activation.GELU, True, True, norm, dtype, device)
    if norm == "-" and device.type == "cpu":
        # numpy adds 8 rows and 16 in orders of its own: sums of eighths need no rounding
        given |= {name: (8 * given[name]).round() / 8 for name in ("x", "weight")}
    assert torch.equal(product(**first(given, num_rows)), product(**first(given, 64))[:num_rows])


def test_nan_stays_in_its_row(device):
    given = arguments((18, 8, 24), Activation.RELU, True, False, "layer", torch.float32, device)
    given["x"][17, 3] = float("nan")
    y = product(**given)
    assert y[17].isnan().all() and not y[:17].isnan().any()


def test_rows_of_a_wider_array(device):
    # whoever writes weights must have ended
    x, weight = torch.randn(3, 40).to(device), torch.randn(5, 16).to(device)
    y = product(x[:, 8:24], weight, None, 0, None, None)
    torch.testing.assert_close(y, x[:, 8:24] @ weight.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [Tile(8, 16, 4), Tile(16, 32, 8), Tile(16, 8, 16)], ids=str)
def test_tiles(tile, device):
    given = arguments((5, 40, 300), Activation.NONE, True, False, "rms", torch.float32, device)
    expected = expected_of(given)
    torch.testing.assert_close(product(**given, tile=tile).double(), expected, rtol=2e-5, atol=2e-5)


def test_takes(device):
    def takes(x: Tensor, weight: Tensor, has_norm: bool = False) -> bool:
        # a copy to a device keeps no strides
        x, weight = (
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
            for t in (x, weight)
        )
        return takes_product(x, weight, has_norm)

    x, weight = torch.zeros(64, 32), torch.zeros(8, 32)
    assert takes(x, weight) and takes(x, weight, True) and takes(torch.zeros(3, 64)[:, 32:], weight)
    for rows in (0, 65):
        assert not takes(torch.zeros(rows, 32), weight)
    # rows and columns that are not read in one piece
    assert not takes(torch.zeros(32, 64).t(), weight)
    assert not takes(x, torch.zeros(32, 8).t()) and not takes(x, torch.zeros(8, 64)[:, :32])
    assert not takes(x, weight.half()) and not takes(x.double(), weight.double())
    # what does not fit the registers of a program
    for dtype, most in ((torch.float32, 1024), (torch.bfloat16, 4096)):
        for depth in (most, most + 1):
            long = torch.zeros(2, depth, dtype=dtype)
            assert takes(long, long) == (depth == most) and takes(long, long, True) == (
                depth == 1024
            )
    assert not takes(torch.zeros(17, 1024), torch.zeros(8, 1024))
    assert not takes(x, torch.zeros(5000, 32))
    # others would write weights of 8 and 4 bits to memory first
    for kind in ("int8", "int4", "float8"):
        held = narrow(torch.randn(5000, 1024).to(device), kind)[0]
        for num_rows in (64, 65):
            x = torch.zeros(num_rows, 1024, device=device)
            assert takes_product(x, held, False) == takes_product(x, held, True) == (num_rows == 64)
