"""The time of all layers in one launch, by its machine code, stays within budgets."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("triton", reason="nvdisasm comes with triton")
pytest.importorskip("tabulate")

from benchmarks.gpu import layers_time
from benchmarks.gpu.count_kernels import MULTIPROCESSORS
from support.decoder_layers import LayersShape
from support.resident_layers import Resident, compiled

# µs of a step of one beam of 5, of which an exchange between all blocks takes most
MOST_US = {"3 layers of 256": ("example", 55.0), "6 layers of 1024": ("widened", 135.0)}


@pytest.mark.slow
@pytest.mark.parametrize("network", MOST_US)
def test_a_step_stays_within_its_budget(network, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    case, most = MOST_US[network]
    rows = list(layers_time.rows_of(network, case, tmp_path))
    found = {row["case"]: row["µs"] for row in rows if row["system"] == "a step"}
    assert found[f"{case}, H100"] <= most, rows


def test_parts_of_a_kernel_are_found_by_name():
    found = layers_time.functions_of(layers_time.SOURCES / "layers_product.cuh")
    names = [name for name, _, _ in found]
    assert {"Products()", "weights_of", "add_products", "finish"} <= set(names)
    assert all(first <= last for _, first, last in found)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("width", [256, 512, 1024])
def test_stages_of_a_ring(width):
    plan = Resident(compiled(), MULTIPROCESSORS).plan(LayersShape(width, 4 * width), 6, 5, 8000)
    packs = layers_time.packs_of(width)
    assert plan is not None and (plan[1], plan[3]) == (packs, layers_time.RING_STAGES[packs])
