"""`tree_attention` with biases by distance, windows and soft caps, against the reference and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam import ops
from pybeam.ops import Distances
from support.asserts import assert_close
from support.attention_cases import ints, random_case, random_distances
from support.threads import every_thread_count

RULES = ("bias", "window", "cap", "bias window", "window cap", "bias window cap")


def attend(
    case: dict, distances: Distances, backend: str, device: torch.device, **more
) -> torch.Tensor:
    def moved(value):
        return value.to(device) if isinstance(value, torch.Tensor) else value

    there = Distances(*map(moved, distances))
    given = {name: moved(value) for name, value in case.items()}
    return ops.tree_attention(**given, distances=there, backend=backend, **more).cpu()


def check(case: dict, distances: Distances, kernel: str, device: torch.device, **more) -> None:
    expected = attend(case, distances, "reference", torch.device("cpu"), **more)
    assert_close(attend(case, distances, kernel, device, **more), expected)


def plainly(case: dict, distances: Distances, row: int, head: int, scale: float) -> torch.Tensor:
    """One row and head [D], cell by cell, in float64."""
    source = int((case["offset"] <= row).sum()) - 1
    slot = int(case["slot"][source])
    scores, values = [], []
    for u in range(int(case["num_cells"][slot])):
        cell = int(case["cell"][slot, u])
        if "mask" in case:
            word, bit = divmod(int(case["entry"][row]), 64)
            if not int(case["mask"][slot, u, word]) >> bit & 1:
                continue
        back = int(distances.position[row]) - int(distances.cell_position[cell])
        if distances.window is not None and not 0 <= back < distances.window:
            continue
        score = scale * float(case["query"][row, head].double() @ case["key"][cell, head].double())
        if distances.soft_cap is not None:
            score = distances.soft_cap * math.tanh(score / distances.soft_cap)
        if distances.bias is not None:
            column = min(max(back + distances.origin, 0), distances.bias.shape[1] - 1)
            score += float(distances.bias[head, column])
        scores.append(score)
        values.append(case["value"][cell, head].double())
    if not values:
        return torch.zeros(case["query"].shape[2], dtype=torch.float64)
    return torch.tensor(scores, dtype=torch.float64).softmax(0) @ torch.stack(values)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("masked", [True, False], ids=["tree", "cross"])
@pytest.mark.parametrize("which", RULES)
def test_the_contract(kernel, device, which, masked):
    case = random_case([3, 1], [13, 4], heads=2, key_heads=2, size=8, masked=masked)
    distances = random_distances(case, which, columns=7, origin=2, window=6)
    actual = attend(case, distances, kernel, device, scale=1.0)
    for row in range(4):
        for head in range(2):
            expected = plainly(case, distances, row, head, 1.0).float()
            torch.testing.assert_close(actual[row, head], expected, atol=3e-6, rtol=1e-5)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", RULES)
def test_dtypes(kernel, device, which, dtype):
    case = random_case([5, 1, 3], [37, 1, 16], size=32, dtype=dtype)
    check(case, random_distances(case, which), kernel, device)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("rows", [1, 4, 7, 50, 130])
@pytest.mark.parametrize("cells", [1, 3, 17, 130])
def test_rows_and_cells(kernel, device, rows, cells):
    case = random_case([rows, 2], [cells, 5], heads=2, key_heads=2, size=16, words=2)
    check(case, random_distances(case, "bias window cap"), kernel, device)


@pytest.mark.parametrize(("heads", "key_heads"), [(8, 2), (6, 1)])
def test_grouped_heads_have_biases_of_their_own(kernel, device, heads, key_heads):
    case = random_case([5, 40], [9, 30], heads, key_heads, size=16)
    check(case, random_distances(case, "bias"), kernel, device)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("columns", [1, 5, 40])
@pytest.mark.parametrize("origin", [0, 3, 39])
def test_distances_beyond_the_table_have_its_ends(kernel, device, columns, origin):
    case = random_case([5], [30], size=16)
    check(case, random_distances(case, "bias", columns=columns, origin=origin), kernel, device)


def test_a_wide_window_hides_what_is_ahead(kernel, device):
    """So a prompt whose tokens are written at once is read causally."""
    case = random_case([6], [6], heads=2, key_heads=2, size=16, masked=False)
    place = torch.arange(6).int()
    cell_position = torch.zeros(len(case["key"]), dtype=torch.int32)
    cells = case["cell"][case["slot"][0].long(), :6].long()
    cell_position[cells] = place
    distances = Distances(position=place, cell_position=cell_position, window=1000)
    actual = attend(case, distances, kernel, device)
    query, key, value = case["query"], case["key"][cells], case["value"][cells]
    parts = [part.transpose(0, 1) for part in (query, key, value)]  # [H, 6, D]
    expected = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
    assert_close(actual, expected.transpose(0, 1))


def test_a_row_that_sees_nothing_is_zero(kernel, device):
    case = random_case([2], [4], masked=False)
    distances = random_distances(case, "window", window=1)._replace(position=ints([99, 0]))
    assert not bool(attend(case, distances, kernel, device)[0].any())


def test_large_scores_reach_the_cap(kernel, device):
    case = random_case([3], [20])
    distances = random_distances(case, "cap")
    actual = attend(case, distances, kernel, device, scale=1e4)
    assert not bool(actual.isnan().any())
    check(case, distances, kernel, device, scale=1e4)


def test_without_rules_nothing_changes(kernel, device):
    case = random_case([5, 3], [37, 16])
    positions = random_distances(case, "")
    expected = ops.tree_attention(
        **{name: value.to(device) for name, value in case.items()}, backend=kernel
    )
    assert torch.equal(attend(case, positions, kernel, device), expected.cpu())
    zero = positions._replace(bias=torch.zeros(4, 1))
    assert_close(attend(case, zero, kernel, device), expected.cpu())


def test_results_do_not_depend_on_threads_or_batch(device):
    case = random_case([5] * 40, [60] * 40)
    distances = random_distances(case, "bias window cap", window=12)
    results = [attend(case, distances, "auto", device) for _ in every_thread_count()]
    assert all(torch.equal(result, results[0]) for result in results)
    first = case | dict(query=case["query"][:5], offset=ints([0, 5]), entry=case["entry"][:5])
    first |= dict(slot=case["slot"][:1])
    alone = attend(first, distances._replace(position=distances.position[:5]), "auto", device)
    if device.type == "cpu":
        assert torch.equal(alone, results[0][:5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(position=None), r"`position` and `cell_position` go together, but `position` is"),
        (
            dict(position=None, cell_position=None),
            r"`bias` and `window` need `position` and `cell_position`",
        ),
        (dict(position=ints([1, 2])), r"`position` must be \[R\] = \[5\], but is \[2\]"),
        (dict(cell_position=ints([1])), r"`cell_position` must be \[cells\]"),
        (dict(bias=torch.zeros(3, 9)), r"`bias` must be \[H, L\] = \[4, \*\], but is \[3, 9\]"),
        (dict(bias=torch.zeros(4, 9).double()), r"`bias` must be torch.float32"),
        (dict(bias=torch.zeros(4, 0)), r"`bias` must be at least one column wide"),
        (dict(window=0), r"`window` must be at least 1, but is 0"),
        (dict(soft_cap=0.0), r"`soft_cap` must be positive and finite, but is 0.0"),
    ],
)
def test_wrong_arguments(changes, message):
    case = random_case([5], [2])
    distances = random_distances(case, "bias window cap")._replace(**changes)
    with pytest.raises(ValueError, match=message):
        ops.tree_attention(**case, distances=distances)
