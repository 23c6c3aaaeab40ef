"""The forecast of a step on a GPU: nothing is faster than the limit, and it is near what was measured."""

from itertools import product

import pytest

from benchmarks.gpu import forecast
from benchmarks.gpu.forecast import DTYPES, MACHINES, NETWORKS, SHAPES, Network, parts, rows_of
from pybeam.engine.buckets import bucket
from pybeam.inspect.gpu_kernels import ROLES, role_of, short_name

# kernels of a step in traces of an H200, operators of torch that launch them, and what they are for
NAMES = {
    "product": [
        *("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "Memset (Device)", "mm", "addmm"),
        *("void cublasLt::splitKreduce_kernel<32, 16, int>(float)", "_addmm_activation"),
    ],
    "attention": ["tree_attention_kernel"],
    "norm": ["add_norm_kernel", "void at::native::vectorized_layer_norm_kernel<float>(int)"],
    "select": ["select_kernel", "void pybeam::select_kernel<8, unsigned int>(SelectParams)"],
    "books": ["plan_kernel", "read_kernel", "commit_kernel"],
    "other": ["void at::native::indexSelectSmallIndex<int>()", "index_select", "embedding", "add_"],
}


@pytest.mark.parametrize("case", list(product(MACHINES, NETWORKS, SHAPES, DTYPES)), ids=str)
def test_order(case):
    rows = {row["system"]: row for row in rows_of(*case)}
    us = {name: row["estimate, µs"] for name, row in rows.items()}
    assert next(iter(rows)) == "limit" and us["limit"] == min(us.values())
    assert us["a kernel a step"] <= us["a kernel a layer"] <= us["kernels as counted"]
    assert all(0 < row["share of the limit, %"] <= 100 for row in rows.values())


def test_bytes_of_a_step():
    """Two layers of width 4, inner layers of 8, 10 tokens; one source, two rows; counted by hand."""
    work = forecast.whole(parts(Network(2, 4, 8, 10), 1, 2, "bfloat16"))
    weights = 2 * (6 * 16 + 2 * 32) + 40
    # the second hypothesis has four tokens of its own
    keys = 2 * 2 * (20 + 30) * 4
    logits = 2 * 2 * 10
    assert work.num_bytes == 2 * weights + 2 * keys + 2 * logits
    pairs = 2 * 2 * 2 * (20 + 30) * 4
    assert work.flop == 2 * 2 * weights + 2 * pairs


def test_rows_as_launched_have_padding():
    sizes = NETWORKS["3 layers of 256"], 1, 5, "bfloat16"
    own, launched = (forecast.whole(parts(*sizes, launched=yes)).flop for yes in (False, True))
    assert launched == pytest.approx(bucket(5) / 5 * own)


@pytest.mark.parametrize(("role", "name"), [(role, n) for role in ROLES for n in NAMES[role]])
def test_roles_of_kernels(role, name):
    assert role_of(name) == role


def test_names_have_no_templates():
    assert short_name(NAMES["other"][0]) == "at::native::indexSelectSmallIndex"
    assert short_name("plan_kernel") == "plan_kernel"
