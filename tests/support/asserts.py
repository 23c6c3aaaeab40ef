"""Compare numbers and survivors. All tests use these functions."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from pybeam.contracts import PAGE_CELLS, Survivors

# (absolute, relative): sums run in float32 and may take any order; 16-bit results may round to a
# neighbour
TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-6, 2e-6),
    torch.bfloat16: (1e-3, 8e-3),
    torch.float16: (2e-4, 1e-3),
}
SCORE_ULP = 4 * 2.0**-23


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 0.0) -> None:
    """Assert equal shapes, dtypes, and values up to `TOLERANCES` of that dtype, or more; NaN equals NaN."""
    atol, rtol = (max(known, tolerance) for known in TOLERANCES[expected.dtype])
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol, equal_nan=True)


def assert_same_survivors(actual: Survivors, expected: Survivors) -> None:
    """Assert equal beams, with scores within 4 ulp. Tokens may differ only if two scores are that close."""
    for name in ("count", "num_finished", "has_nan"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), msg=name)
    for name in ("token", "parent", "score", "log_prob"):
        assert getattr(actual, name).dtype == getattr(expected, name).dtype, name
        assert getattr(actual, name).shape == getattr(expected, name).shape, name
    for s in range(expected.count.numel()):
        _assert_same_beam(
            [field[s].tolist() for field in actual], [f[s].tolist() for f in expected]
        )


def _assert_same_beam(actual: list, expected: list) -> None:
    token, parent, score, log_prob, count, num_finished, _ = expected
    for j in range(len(token)):
        if j >= count:
            assert [field[j] for field in actual[:4]] == [-1, -1, -torch.inf, -torch.inf]
            continue
        assert _is_near(actual[2][j], score[j]), (j, actual[2][j], score[j])
        if (actual[0][j], actual[1][j]) == (token[j], parent[j]):
            assert _is_near(actual[3][j], log_prob[j]), (j, actual[3][j], log_prob[j])
            continue
        part = range(num_finished) if j < num_finished else range(num_finished, count)
        near = [i for i in part if i != j and _is_near(score[i], score[j])]
        # at the last place the rival may be the one that was cut off
        assert near or j == part[-1], (j, actual, expected)


def _is_near(actual: float, expected: float) -> bool:
    """Whether two numbers are equal, as infinities may be, or finite and within 4 ulp."""
    if actual == expected:
        return True
    return math.isfinite(expected) and abs(actual - expected) <= SCORE_ULP * max(1, abs(expected))


# (attribute, the counter that says how much of a slot's line is in use)
TREE_LISTS = {
    "token": "num_nodes",
    "parent": "num_nodes",
    "log_prob": "num_nodes",
    "live_cell": "num_live",
    "live_mask": "num_live",
    "free_cell": "num_free",
    "page": "num_pages",
}


def tree_in_use(tree) -> dict[str, list]:
    """Return the arrays of a tree without the places that nobody may read.

    Pages are numbered slot after slot, because sources on a device take them in any order.
    """
    state = {name: getattr(tree, name).tolist() for name in set(TREE_LISTS.values())}
    state["num_free_pages"] = tree.num_free_pages.tolist()
    lengths = state["path_length"] = tree.path_length.tolist()
    state["path"] = [tree.path[p, :, :length].tolist() for p, length in enumerate(lengths)]
    for name, counter in TREE_LISTS.items():
        counts, array = getattr(tree, counter).tolist(), getattr(tree, name)
        # guesses have no log-prob yet, and NaN is not equal to NaN
        array = array.view(torch.int32) if array.dtype == torch.float32 else array
        state[name] = [array[p, :n].tolist() for p, n in enumerate(counts)]
    for name in ("live_cell", "free_cell"):
        state[name] = [with_own_pages(tree, cells) for cells in state[name]]
    state["page"] = [list(map(numbers_of_pages(tree).get, pages)) for pages in state["page"]]
    return state


def with_own_pages(tree, cells: list[int]) -> list[int]:
    """Return cells, -1 for none, as if pages had been given slot after slot."""
    number = numbers_of_pages(tree)
    return [
        cell if cell < 0 else number[cell // PAGE_CELLS] * PAGE_CELLS + cell % PAGE_CELLS
        for cell in cells
    ]


def numbers_of_pages(tree) -> dict[int, int]:
    """Number the pages of a tree in the order of slots, and of the pages of a slot."""
    held = [tree.page[p, :n].tolist() for p, n in enumerate(tree.num_pages.tolist())]
    return {page: i for i, page in enumerate(itertools.chain(*held))}
