"""The operator `embed`: tokens and positions as torch looks them up, from tables of every kind."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import torch_layers
from pybeam.backends.packing import pack, quantise

VOCAB, SIZE, POSITIONS = 70, 33, 9
native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


def table_of(kind: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = torch.randn(VOCAB, SIZE)
    if "int8" in kind:
        weight = quantise(weight)
        if kind.startswith("packed"):
            return pack(weight, keeps_large="large" in kind), weight.scale
        return weight.q, weight.scale
    dtype = getattr(torch, kind.removeprefix("packed "))
    weight = weight.to(dtype)
    return (pack(weight) if kind.startswith("packed") else weight), None


DTYPES = ("float32", "float16", "bfloat16", "int8")


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize(
    "kind", [*DTYPES, *(f"packed {name}" for name in (*DTYPES, "int8, keeps large"))]
)
@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_as_torch(kind, num_rows):
    table, scale = table_of(kind)
    token = torch.randint(VOCAB, (num_rows,), dtype=torch.int32)
    position = torch.randint(POSITIONS, (num_rows,), dtype=torch.int32)
    arguments = token, position, table, scale, VOCAB, torch.randn(POSITIONS, SIZE), 5.75
    torch.testing.assert_close(native.embed(*arguments), torch_layers.embed(*arguments))


@pytest.mark.parametrize("kind", ["float32", "packed float32", "packed int8"])
def test_without_positions(kind):
    table, scale = table_of(kind)
    token, position = torch.randint(VOCAB, (2, 7), dtype=torch.int32)
    tables = table, scale, VOCAB
    found = native.embed(token, position, *tables, torch.empty(0, SIZE), 5.75)
    assert torch.equal(found, native.embed(token, token * 0, *tables, torch.zeros(1, SIZE), 5.75))
    expected = torch_layers.embed(token, position, *tables, torch.empty(0, SIZE), 5.75)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, torch.tensor([VOCAB], dtype=torch.int32), RuntimeError, "`token` must be from 0 to 69"),
        (0, torch.tensor([-1], dtype=torch.int32), RuntimeError, "`token` must be from 0 to 69"),
        (0, torch.tensor([1]), ValueError, "`token` must be int32"),
        (
            1,
            torch.tensor([POSITIONS], dtype=torch.int32),
            RuntimeError,
            "`position` must be from 0",
        ),
        (1, torch.zeros(2, dtype=torch.int32), ValueError, r"`position` must be \[1\]"),
        (2, torch.randn(VOCAB - 1, SIZE), ValueError, r"`table` must be \[70, 33\]"),
        (2, torch.randn(1, SIZE, 64), ValueError, "`weight` must be"),
        (
            2,
            torch.zeros(VOCAB, SIZE, dtype=torch.int8),
            ValueError,
            "`scale` must be given for int8",
        ),
        (2, torch.zeros(VOCAB, SIZE, dtype=torch.uint8), ValueError, "`table` must be packed in"),
        (2, torch.zeros(2, 2, 1152, dtype=torch.uint8), ValueError, "other weights than int4"),
        (3, torch.ones(VOCAB), ValueError, "`scale` must be given for int8 alone"),
        (5, torch.randn(POSITIONS, SIZE).double(), ValueError, "`position_table` must be float32"),
    ],
)
def test_wrong_arguments(index, value, error, message):
    one = torch.zeros(1, dtype=torch.int32)
    arguments = [one, one, torch.randn(VOCAB, SIZE), None, VOCAB, torch.randn(POSITIONS, SIZE), 1.0]
    arguments[index] = value
    with pytest.raises(error, match=message):
        native.embed(*arguments)
