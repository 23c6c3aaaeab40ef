"""A step has no more kernels than its budget allows, counted without a GPU."""

from __future__ import annotations

import json

import pytest
import torch

from pybeam.backends import poison
from pybeam.models import load_model
from support.causal_models import save_tiny_causal
from support.paths import ROOT
from support.tiny_models import save_tiny_model

triton = pytest.importorskip("triton", reason="kernels are counted by Triton's launches")


@pytest.fixture
def launches(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    # who poisons memory launches kernels
    monkeypatch.setattr(poison, "IS_ON", False)
    return pytest.importorskip("benchmarks.gpu.launches")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Three decoder layers, without memory."""
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100", max_position_embeddings=128)
    return load_model(directory, device="meta", dtype="bfloat16")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_sources", [64, 1])
@pytest.mark.parametrize(
    "name",
    [
        "fixed_beam",
        "stochastic_beam",
        "sample",
        "cuts",
        "processors",
        "greedy",
        "variable_beam",
        "optimal_beam",
        "hybrid_jacobi",
        pytest.param("jacobi", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_within_its_budget(launches, model, name, num_sources):
    row = launches.row_of(name, 3, num_sources, launches.kernels(model, name, num_sources))
    assert row["model"] > 20
    assert row["select"] >= 1
    assert row["sum"] <= row["budget"], row


def test_kernels_are_counted_by_phase(launches, model):
    count_kernels = pytest.importorskip("benchmarks.gpu.count_kernels")
    kernels = count_kernels.Kernels()
    x = torch.empty(4, 6, device="meta")

    def work() -> None:
        # two views, a product, a sum of two kernels, and one that is made of another
        y = torch.nn.functional.linear(x.view(6, 4).t(), x[:, :6])
        y.cumsum(0)
        norm = model.decoder.layers[0].self_norms.before
        norm(torch.empty(3, 24, dtype=torch.bfloat16, device="meta"))

    with torch.inference_mode(), kernels.counting():
        kernels.within("model", work)()
    assert kernels.counts["model"] == {"mm": 1, "cumsum": 2, "native_layer_norm": 1}
    assert not kernels.counts["read"]


def test_few_sources_clear_no_counters(launches, model):
    """A launch that is split counts its parts, with counters that are lent to the whole graph."""
    many, few = (
        launches.kernels(model, "fixed_beam", num_sources)["model"] for num_sources in (64, 1)
    )
    # products of few rows are ours, and have norms and sums inside, but for the last norm
    own, theirs = (
        few.pop("product_kernel"),
        many.pop("add_norm_kernel") - few.pop("add_norm_kernel"),
    )
    assert (own, theirs) == (3 * 6, 3 * 3 - 1)
    products = [name for name in many if "mm" in name]
    assert own == sum(many.pop(name) - few.pop(name, 0) for name in products)
    assert few == many
    assert "zeros" not in few


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_layer_of_a_decoder_alone_is_few_kernels(launches, kind, tmp_path):
    """Norms and turns of heads are one kernel, and gates another, where torch had 46 for the two of Qwen3."""
    counts, number = [], 9
    for num_layers in (1, 3):
        save_tiny_causal(tmp_path / str(num_layers), kind, num_hidden_layers=num_layers)
        own = load_model(tmp_path / str(num_layers), device="meta", dtype="bfloat16")
        counts.append(launches.kernels(own, "fixed_beam", 64)["model"])
    layers = counts[1] - counts[0]
    assert layers["turn_heads_kernel"] == layers["gated_kernel"] == 2
    assert layers.total() == 2 * number
    # beside layers: embeddings, logits, and what puts a prompt before its tree, where torch had 30
    assert counts[0].total() - number == 1 + 1 + 1
    assert counts[0]["prepend_prompts_kernel"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed_beam, Qwen3-0.6B", "fixed_beam, Llama-3.2-1B"])
def test_decoders_alone_have_the_kernels_of_the_table(launches, name, tmp_path):
    table = json.loads((ROOT / "benchmarks" / "results" / "launches.json").read_text("utf-8"))
    recorded = {
        (row["layers"], row["sources"]): row for row in table["rows"] if row["algorithm"] == name
    }
    found = {}
    for _, num_layers, own in launches.steps([name], tmp_path):
        for num_sources in launches.SOURCES:
            counts = launches.kernels(own, name, num_sources)
            row = launches.row_of(name, num_layers, num_sources, counts)
            assert row["sum"] <= row["budget"]
            found[num_layers, num_sources] = row["names"]
    assert found == {key: row["names"] for key, row in recorded.items()}


def test_more_eos_ids_are_three_kernels_more(launches, model, monkeypatch):
    one = launches.kernels(model, "greedy", 1)["commit"]
    monkeypatch.setattr(model, "other_eos_ids", (5, 9, 11))
    several = launches.kernels(model, "greedy", 1)["commit"]
    assert several - one == {"eq": 1, "any": 1, "where": 1}


def test_every_step_has_a_budget(launches):
    assert set(launches.BUDGETS) == set(launches.TARGETS) == set(launches.STEPS)
    for name, budgets in launches.BUDGETS.items():
        assert set(budgets) == set(
            launches.FEW_LAYERS if name in launches.DECODERS else launches.LAYERS
        )
        assert all(budgets[n] <= target for n, target in launches.TARGETS[name].items())
