"""`gather_rows` moves rows as if all at once, whatever overlaps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam import ops


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def tensors_of(num_rows: int) -> list[torch.Tensor]:
    """Several shapes and dtypes; the second is a slice, so its rows are far apart."""
    torch.manual_seed(num_rows)
    return [
        torch.randn(num_rows, 3),
        torch.randn(num_rows, 20)[:, 5:12],
        torch.randint(0, 100, (num_rows, 2, 2)),
        torch.rand(num_rows) < 0.5,
        torch.randn(num_rows, 5000).bfloat16(),
        torch.randn(num_rows, 0),
    ]


def check(backend: str, num_rows: int, source: list[int], target: list[int], device="cpu") -> None:
    tensors = [tensor.to(device) for tensor in tensors_of(num_rows)]
    expected = [tensor.clone() for tensor in tensors]
    for before, after in zip(tensors, expected, strict=True):
        for s, t in zip(source, target, strict=True):
            if s >= 0 and t >= 0:
                after[t] = before[s]
    moves = (ints(source).to(device), ints(target).to(device))
    ops.gather_rows(tensors, *moves, backend=backend)
    for actual, wanted in zip(tensors, expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1], [1], id="itself"),
        pytest.param([0, 1], [1, 0], id="swap"),
        pytest.param([0, 1, 2, 3], [1, 2, 3, 0], id="cycle"),
        pytest.param([0, 1, 2], [1, 2, 3], id="chain"),
        pytest.param([0, 0, 0, 0], [0, 1, 2, 3], id="one-to-all"),
        pytest.param([0, 1, 0, 1, 4], [1, 0, 2, 3, 4], id="cycle-with-branches"),
        pytest.param([-1, 1, 0, -1, 3, 2], [-1, 0, 1, 2, -1, -1], id="some-do-not-move"),
    ],
)
def test_overlaps(backend, device, source, target):
    check(backend, 6, source, target, device)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), num_rows=st.integers(1, 8))
def test_any_moves(data, num_rows):
    target = data.draw(st.permutations(range(num_rows)))[: data.draw(st.integers(0, num_rows))]
    rows = st.integers(0, num_rows - 1)
    source = data.draw(st.lists(rows, min_size=len(target), max_size=len(target)))
    check("auto", num_rows, source, target)


def test_many_wide_rows(backend, device):
    torch.manual_seed(0)
    tensor = torch.randn(320, 3000).to(device)
    source = torch.randint(0, 320, (320,), dtype=torch.int32).to(device)
    expected = tensor[source.long()]
    target = torch.arange(320, dtype=torch.int32, device=device)
    ops.gather_rows([tensor], source, target, backend=backend)
    assert torch.equal(tensor, expected)


def test_no_tensors_raise_nothing(backend):
    ops.gather_rows([], ints([0]), ints([1]), backend=backend)


@pytest.mark.parametrize(
    ("tensor", "source", "target", "message"),
    [
        (torch.zeros(3, 2), [3], [0], r"`source` must be from -1 to 2, but is 3"),
        (torch.zeros(3, 2), [0], [-2], r"`target` must be from -1 to 2, but is -2"),
        (torch.zeros(3, 2), [0, 1], [2, 2], r"`target` must be free of repeats, but is 2 more"),
        (torch.zeros(3, 2), [0, 1], [2], r"`target` must be \[n\] = \[2\], but is \[1\]"),
        (torch.zeros(3, 2, 2).mT, [0], [1], r"`tensors\[0\]` must be contiguous in all but"),
        (torch.zeros(1, 2).expand(3, 2), [0], [1], r"`tensors\[0\]` must be of rows apart"),
    ],
)
def test_wrong_arguments(tensor, source, target, message):
    with pytest.raises(ValueError, match=message):
        ops.gather_rows([tensor], ints(source), ints(target))


def test_native_refuses_what_the_door_would_have():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    tensor = torch.zeros(3, 2)
    for source, target in (([3], [0]), ([0], [3]), ([0], [-2]), ([0, 1], [2, 2])):
        with pytest.raises(RuntimeError):
            native.gather_rows([tensor], ints(source), ints(target))
