"""`embed_norm`: tokens, positions and two norms in one kernel, as one after another."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import torch_layers
from pybeam.triton_kernels.embedding import embed_norm

NUM_TOKENS, NUM_POSITIONS, SKIPPED, SCALE = 30, 12, 1, 5.75
CASES = [
    # positions, a skipped token, the norm of embeddings, the first layer's
    pytest.param(True, SKIPPED, None, "layer", id="m2m_100"),
    pytest.param(True, -1, "layer", None, id="bart"),
    pytest.param(True, -1, "layer", "layer", id="mbart"),
    pytest.param(True, -1, None, None, id="marian"),
    pytest.param(False, -1, None, "rms", id="t5"),
    pytest.param(False, -1, "rms", "rms", id="no mean"),
]


def norm_of(kind: str | None, size: int, dtype, device):
    if kind is None:
        return None
    weight, shift = torch.randn(2, size).to(device, dtype)
    return weight, shift if kind == "layer" else None, 1e-3


def expected_of(token, place, table, positions, skipped, norms) -> list[torch.Tensor]:
    """States and what the first layer reads, in float64, rounded to where they are written."""
    x = SCALE * table[token.long()].double()
    if len(positions):
        place = place + (token == skipped) * (len(positions) // 2)
        x += positions[place.long()].double()
    found = [x.to(table.dtype)]
    for norm in norms:
        x = found[-1].double()
        if norm is not None:
            weight, shift, epsilon = norm
            own = [one.double() for one in (weight, shift) if one is not None]
            kernel = torch_layers.rms_norm if shift is None else torch_layers.layer_norm
            x = kernel(x, *own, epsilon)
        found.append(x.to(table.dtype))
    return found[1:]


@pytest.mark.parametrize(("has_positions", "skipped", "own", "first"), CASES)
@pytest.mark.parametrize(("num_rows", "size"), [(0, 24), (1, 1), (7, 40), (3, 1025)])
def test_as_one_after_another(device, num_rows, size, has_positions, skipped, own, first):
    table = torch.randn(NUM_TOKENS, size, device=device)
    positions = torch.randn(NUM_POSITIONS if has_positions else 0, size, device=device)
    token = torch.arange(num_rows, dtype=torch.int32, device=device) % 3
    place = torch.randint(NUM_POSITIONS // 2, (num_rows,), dtype=torch.int32, device=device)
    norms = [norm_of(kind, size, torch.float32, device) for kind in (own, first)]
    given = token, place, table, positions
    states, read = embed_norm(*given, SCALE, skipped, norms)
    expected_states, expected = expected_of(*given, skipped, norms)
    torch.testing.assert_close(states, expected_states, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(read, expected, rtol=1e-5, atol=1e-5)
    assert (read is states) == (first is None)
    if num_rows > 1:
        # a row does not depend on the others
        last = embed_norm(token[-1:], place[-1:], table, positions, SCALE, skipped, norms)
        assert torch.equal(last[0], states[-1:]) and torch.equal(last[1], read[-1:])


def test_norms_are_of_what_is_kept(device):
    """In bfloat16 each result is rounded before the next norm, as if it had been written and read again."""
    table, positions = (torch.randn(n, 40, device=device).bfloat16() for n in (NUM_TOKENS, 9))
    token, place = (torch.randint(9, (5,), dtype=torch.int32, device=device) for _ in range(2))
    norms = [norm_of("layer", 40, torch.bfloat16, device) for _ in range(2)]
    found = embed_norm(token, place, table, positions, SCALE, -1, norms)
    expected = expected_of(token, place, table, positions, -1, norms)
    for own, other in zip(found, expected, strict=True):
        # the interpreter cuts bits off where a GPU rounds
        torch.testing.assert_close(own.float(), other.float(), rtol=2**-6, atol=2**-5)


def test_rows_that_there_are_not_read_nothing(device):
    """Padding may hold any token; nothing outside of the tables is read for it."""
    table, positions = torch.randn(4, 8, device=device), torch.randn(2, 8, device=device)
    token = torch.tensor([4, -1, 3], dtype=torch.int32, device=device)
    place = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    states, _ = embed_norm(token, place, table, positions, 2.0, -1, [None, None])
    torch.testing.assert_close(states, torch.stack((positions[0], positions[1], 2 * table[3])))
