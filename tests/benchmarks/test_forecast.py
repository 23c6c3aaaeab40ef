"""The forecast of a step on a GPU: nothing is faster than the limit, and fewer kernels are not slower."""

from itertools import product

import pytest

from benchmarks.gpu.forecast import DTYPES, MACHINES, NETWORKS, SHAPES, Network, parts, rows_of


@pytest.mark.parametrize("case", list(product(MACHINES, NETWORKS, SHAPES, DTYPES)), ids=str)
def test_order(case):
    rows = {row["system"]: row for row in rows_of(*case)}
    least = {name: row["estimate, least µs"] for name, row in rows.items()}
    assert next(iter(rows)) == "limit" and least["limit"] == min(least.values())
    assert least["a kernel a step"] <= least["a kernel a layer"] <= least["kernels as counted"]
    assert all(row["estimate, least µs"] <= row["estimate, most µs"] for row in rows.values())
    assert all(0 < row["share of the limit, %"] <= 100 for row in rows.values())


def test_bytes_of_a_step():
    """Two layers of width 4, inner layers of 8, 10 tokens; one source, two rows; counted by hand."""
    work = parts(Network(2, 4, 8, 10), 1, 2, "bfloat16")
    weights = 2 * (6 * 16 + 2 * 32) + 40
    keys = 2 * 2 * (2 * 16 + 30) * 4
    logits = 2 * 2 * 10
    assert sum(one.num_bytes for one in work) == 2 * weights + 2 * keys + 2 * logits
    pairs = 2 * 2 * 2 * (16 + 30) * 4
    assert sum(one.flop for one in work) == 2 * 2 * weights + 2 * pairs
