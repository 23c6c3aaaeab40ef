"""The forecast of a step on a GPU: nothing is faster than the limit, and it is near what was measured."""

import json
from collections import Counter
from itertools import product
from statistics import median

import pytest
import torch

from benchmarks import decoders
from benchmarks.gpu import forecast
from benchmarks.gpu.forecast import DTYPES, MACHINES, NETWORKS, SHAPES, Network, parts, rows_of
from benchmarks.journal import RESULTS
from pybeam.engine.buckets import bucket
from pybeam.inspect.gpu_kernels import ROLES, role_of, short_name
from pybeam.inspect.work import whole

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
    limit, step, *kernels = rows_of(*case)
    assert (limit["system"], step["system"]) == ("limit", forecast.STEP)
    assert limit["estimate, µs"] < step["estimate, µs"]
    assert all(0 <= row["share of the limit, %"] <= 100 for row in (limit, step, *kernels))
    if case[3] != DTYPES[0]:
        assert not kernels
        return
    # that of the kernels is that of the step, but for the books and what passes between
    counted = sum(row["kernels"] * row["estimate, µs"] for row in kernels)
    assert counted == pytest.approx(step["estimate, µs"], rel=0.25)
    assert {row["mostly"] for row in kernels} <= {"start", "bytes", "products", "turns"}


def test_blocks_of_a_product_come_in_waves():
    """Products of 320 rows by cuBLAS, in blocks of 64 rows and 64 outputs, counted by hand."""
    machine = MACHINES["H100"]
    own = {
        (part.name, part.num_inputs): part
        for part in parts(NETWORKS["6 layers of 1024"], 64, 5, "bfloat16", launched=True)
    }
    assert own["queries", 1024].num_blocks == 5 * 16 and own["queries", 1024].waves(machine) == 1
    assert own["queries, keys, values", 1024].waves(machine) == 2
    assert own["inner layer", 1024].waves(machine) == 3
    assert own["logits", 1024].waves(machine) == 25
    # 64 inputs after 64, in each wave
    reasons = own["inner layer", 1024].reasons(machine, "bfloat16")
    assert reasons["turns"] == pytest.approx(3 * 16 * forecast.INPUTS_US)


@pytest.mark.parametrize(("width", "turns"), [(128, 16), (1024, 64)])
def test_deep_products_are_split_where_multiprocessors_are_idle(width, turns):
    """Those of 64 rows have 2 blocks or 16 for 132 multiprocessors, those of 320 rows 80."""
    network = Network(1, width, 4096, 42000)
    rows = 64 if width == 128 else 320
    *_, own = (
        part
        for part in parts(network, rows // 5, 5, "bfloat16", launched=True)
        if part.num_inputs == 4096
    )
    reasons = own.reasons(MACHINES["H100"], "bfloat16")
    assert reasons["turns"] == pytest.approx(turns * forecast.INPUTS_US)


def test_products_take_about_what_cublas_took():
    off = []
    for gpu, folder in (("H100", "nvidia-h100-80gb-hbm3"), ("H200", "nvidia-h200")):
        rows = json.loads((RESULTS / folder / "gpu-step.json").read_text("utf-8"))["rows"]
        for row in rows:
            if "network" not in row or "LAUNCH" in row["case"] or "first" in row["case"]:
                continue
            sizes = Network(**row["network"]), row["sources"], row["width"], row["dtype"]
            own = [part for part in parts(*sizes, launched=True) if part.role == "product"]
            # a memset has no part
            measured = [
                one["µs"] for one in row["listed"] if one["role"] == "product" and "part" in one
            ]
            for part, us in zip(own, measured, strict=True):
                if not part.is_few:
                    off.append(abs(part.us(MACHINES[gpu], row["dtype"]) / us - 1))
    assert len(off) > 100 and median(off) < 0.07


@pytest.mark.parametrize("num_rows", [5, 16, 17, 64, 65, 320])
def test_products_of_few_rows_are_those_that_the_kernel_takes(num_rows):
    kernel = pytest.importorskip("pybeam.triton_kernels.product", exc_type=ImportError)
    for network in NETWORKS.values():
        for part in parts(network, num_rows, 1, "bfloat16"):
            if part.role != "product":
                continue
            x = torch.empty(num_rows, part.num_inputs, dtype=torch.bfloat16, device="meta")
            weight = x.new_empty(part.num_outputs, part.num_inputs)
            assert part.is_few == kernel.takes_product(x, weight, has_norm=False), part


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("name", decoders.SHAPES)
def test_kernels_of_a_decoder_alone_are_those_of_its_parts(name, few):
    """Attentions and products were counted in one layer and in two."""
    network = NETWORKS[name]
    counted = forecast.counted_kernels(network, few)
    own = Counter(part.role for part in parts(network, 1 if few else 64, 5, "bfloat16"))
    assert (counted["product"], counted["attention"]) == (own["product"], own["attention"])
    # one that turns heads and one of gates in each layer
    assert counted["other"] == 2 * network.layers
    # read, commit, and what puts prompts before trees
    assert counted["books"] == 3


def test_rows_of_heads_that_share_keys_are_one_tile():
    """5 rows of two heads each, for 8 heads of keys of 128 numbers; 128 + 27 of these, and 5 new ones."""
    own = parts(NETWORKS["Qwen3-0.6B"], 64, 5, "bfloat16")
    attention = next(part for part in own if part.role == "attention")
    assert attention.keys == (128 + 16 + 4 * 4 - 5, 5)
    assert attention.num_blocks == 64 * 8
    assert attention.num_tiles == (5 + 1) * 2


def test_books_take_the_time_of_their_machine_code():
    rows = json.loads((RESULTS / "code-time.json").read_text("utf-8"))["rows"]
    us = {(row["case"], row["system"]): row.get("µs") for row in rows}
    for name, case in forecast.CASES.items():
        own = [us[f"{case}, 64x5", kernel] for kernel in ("read_kernel", "commit_kernel")]
        assert forecast.books_us(NETWORKS[name], 64) == pytest.approx(sum(own) / 2)
    assert forecast.books_us(NETWORKS[name], 1) < forecast.books_us(NETWORKS[name], 64)


def test_bytes_of_a_step():
    """Two layers of width 4, inner layers of 8, 10 tokens; one source, two rows; counted by hand."""
    work = whole(parts(Network(2, 4, 8, 10), 1, 2, "bfloat16"))
    weights = 2 * (6 * 16 + 2 * 32) + 40
    # the second hypothesis has four tokens of its own
    keys = 2 * 2 * (20 + 30) * 4
    logits = 2 * 2 * 10
    assert work.num_bytes == 2 * weights + 2 * keys + 2 * logits
    pairs = 2 * 2 * 2 * (20 + 30) * 4
    assert work.flop == 2 * 2 * weights + 2 * pairs


def test_rows_as_launched_have_padding():
    sizes = NETWORKS["3 layers of 256"], 1, 5, "bfloat16"
    own, launched = (whole(parts(*sizes, launched=yes)).flop for yes in (False, True))
    assert launched == pytest.approx(bucket(5) / 5 * own)


@pytest.mark.parametrize(("role", "name"), [(role, n) for role in ROLES for n in NAMES[role]])
def test_roles_of_kernels(role, name):
    assert role_of(name) == role


def test_names_have_no_templates():
    assert short_name(NAMES["other"][0]) == "at::native::indexSelectSmallIndex"
    assert short_name("plan_kernel") == "plan_kernel"
