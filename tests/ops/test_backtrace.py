"""`backtrace` reads hypotheses out of the tree."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends, ops


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


TOKEN = ints([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
PARENT = ints([[-1, 0, 0, 1, 3], [-1, 0, 1, 2, 3]])


def trace(token, parent, slot, node, capacity: int, backend: str, device: torch.device):
    moved = (tensor.to(device) for tensor in (token, parent, slot, node))
    tokens, length = ops.backtrace(*moved, capacity=capacity, backend=backend)
    return tokens.cpu(), length.cpu()


def test_by_hand(backend, device):
    slot, node = ints([0, 1, 0, 0]), ints([4, 2, -1, 0])
    tokens, length = trace(TOKEN, PARENT, slot, node, 6, backend, device)
    assert tokens.tolist() == [
        [10, 11, 13, 14, -1, -1],
        [20, 21, 22, -1, -1, -1],
        [-1] * 6,
        [10, -1, -1, -1, -1, -1],
    ]
    assert length.tolist() == [4, 3, 0, 1]


def test_random_trees(backend, device):
    torch.manual_seed(0)
    num_slots, num_nodes = 7, 300
    parent = (torch.rand(num_slots, num_nodes) * torch.arange(num_nodes)).int()
    parent[:, 0] = -1
    token = torch.randint(0, 1000, (num_slots, num_nodes), dtype=torch.int32)
    slot = torch.randint(0, num_slots, (40,), dtype=torch.int32)
    node = torch.randint(-1, num_nodes, (40,), dtype=torch.int32)
    actual = trace(token, parent, slot, node, 40, backend, device)
    expected = ops.backtrace(token, parent, slot, node, capacity=40, backend="reference")
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_too_small_a_capacity(backend, device):
    with pytest.raises(ValueError, match=r"`capacity` must be at least .* 4, but is 3"):
        trace(TOKEN, PARENT, ints([0]), ints([4]), 3, backend, device)
    moved = (tensor.to(device) for tensor in (TOKEN, PARENT, ints([0]), ints([4])))
    tokens, length = backends.load(backend).backtrace(*moved, 3)
    assert tokens.tolist() == [[10, 11, 13]]
    assert length.tolist() == [4]


def test_nothing_asked(backend, device):
    tokens, length = trace(TOKEN, PARENT, ints([]), ints([]), 3, backend, device)
    assert tokens.shape == (0, 3)
    assert length.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(slot=ints([2])), r"`slot` must be from 0 to 1, but is 2"),
        (dict(node=ints([5])), r"`node` must be from -1 to 4, but is 5"),
        (dict(node=ints([-2])), r"`node` must be from -1 to 4, but is -2"),
        (
            dict(parent=ints([[-1, 0, 2, 1, 3]] * 2)),
            r"`parent` must be -1 or smaller than the node",
        ),
        (dict(parent=PARENT[:, :4]), r"`parent` must be \[S, N\] = \[2, 5\]"),
        (dict(slot=torch.tensor([0])), r"`slot` must be torch.int32"),
    ],
)
def test_wrong_arguments(changes, message):
    case = dict(token=TOKEN, parent=PARENT, slot=ints([0]), node=ints([4]))
    with pytest.raises(ValueError, match=message):
        ops.backtrace(**{**case, **changes}, capacity=6)


def test_native_refuses_what_the_door_would_have():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    for slot, node, parent in ((2, 0, PARENT), (0, 5, PARENT), (0, 4, ints([[1, 0, 4, 3, 4]] * 2))):
        with pytest.raises(RuntimeError):
            native.backtrace(TOKEN, parent, ints([slot]), ints([node]), 6)
