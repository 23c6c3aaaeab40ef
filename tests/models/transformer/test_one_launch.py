"""A decoder whose layers are one launch has the results of one operator after another."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.ensemble import Ensemble
from pybeam.models.transformer import cuda_operators, one_launch
from support.built_in_models import saved
from support.device_loop import assert_alike, run
from support.marian_folders import SSRU, write_folder
from support.one_launch import (
    ALGORITHMS,
    CHOOSING,
    MOST_ROWS,
    Operators,
    installed,
    layers_by_address,
    on_a_gpu,
)
from support.resident_layers import Resident, compiled
from support.tiny_models import save_tiny_model

SIZES = dict(d_model=64, decoder_attention_heads=1, decoder_ffn_dim=96)
REFERENCE = backends.load("reference")


@pytest.fixture
def operators(monkeypatch) -> Operators:
    monkeypatch.setattr(cuda_operators, "DTYPES", (torch.float32,))
    return installed(monkeypatch, layers_by_address)


KINDS = ["m2m_100", "mbart", "bart-gelu_new", "pegasus", "marian", "fsmt"]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", KINDS)
def test_as_one_operator_after_another(kind, tmp_path, operators):
    save_tiny_model(tmp_path, kind, **SIZES)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), requests)
    assert not operators.num_rows
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), requests)
    assert_alike(results, expected)
    assert len(operators.num_rows) == operators.num_chosen == stats.steps


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("schedule", [pybeam.Batch(2), pybeam.Streaming(9)], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_searches(name, schedule, tmp_path, operators):
    """Each search with each schedule, and a prefix, has the results of one operator after another."""
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    requests = [[5, 7, 9], pybeam.Request([6, 8], prefix=[9, 5, 7]), [7, 7, 5, 6, 8]]
    given = schedule, requests
    expected, _ = run(Workspace(model, ALGORITHMS[name], REFERENCE), *given)
    results, _ = run(Workspace(model, ALGORITHMS[name], on_a_gpu()), *given)
    assert operators.num_rows
    assert (operators.num_chosen > 0) == (name in CHOOSING)
    assert_alike(results, expected)


@pytest.mark.parametrize("what", ["target", "ensemble"])
def test_logits_that_somebody_changes_are_not_selected_from(what, tmp_path, operators):
    """A launch makes logits alone for a target, and for a member of an ensemble."""
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    request = pybeam.Request([6, 8], target=[9, 5]) if what == "target" else [6, 8]
    if what == "ensemble":
        model = Ensemble([model, model])
    given = pybeam.Batch(2), [request, request]
    algorithm = pybeam.fixed_beam(3, max_length=6)
    expected, _ = run(Workspace(model, algorithm, REFERENCE), *given)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), *given)
    assert operators.num_rows and not operators.num_chosen
    assert_alike(results, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_searches_take_the_kernel(kind, tmp_path, monkeypatch):
    """The CUDA C++ kernel itself, as fibers of this CPU, in searches of float16."""
    operators = installed(monkeypatch, Resident(compiled(), 5).operator)
    save_tiny_model(tmp_path, kind, **SIZES)
    model = load_model(tmp_path, device="cpu", dtype="float16")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    requests = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), requests)
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), requests)
    assert len(operators.num_rows) == operators.num_chosen == stats.steps
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.error is None
        # second places of such models are ties, but for the last bits
        assert ours.hypotheses[0].tokens == theirs.hypotheses[0].tokens
        scores = [h.score for h in theirs.hypotheses]
        assert [h.score for h in ours.hypotheses] == pytest.approx(scores, abs=0.02)


@pytest.mark.parametrize("kind", ["t5", "causal-qwen3", "marian-ssru"])
def test_others_are_left_to_operators(kind, tmp_path, operators):
    if kind.startswith("causal"):
        saved(kind, tmp_path)
    elif kind == "marian-ssru":
        write_folder(tmp_path, 3, **SSRU)
    else:
        save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, max_length=6)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), [[5, 7, 9]])
    assert results[0].error is None and not operators.num_rows


def test_many_rows_are_left_to_operators(tmp_path, operators):
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    work = Workspace(model, pybeam.fixed_beam(3, max_length=6), on_a_gpu())
    _, stats = run(work, pybeam.Batch(30), [[5, 7, 9], [6, 8]] * 15)
    assert operators.num_rows and max(operators.num_rows) <= MOST_ROWS
    assert len(operators.num_rows) < stats.steps


def test_it_is_off(tmp_path, operators, monkeypatch):
    monkeypatch.setattr(one_launch, "IS_ON", False)
    save_tiny_model(tmp_path, "m2m_100", **SIZES)
    model = load_model(tmp_path, device="cpu")
    assert one_launch.in_one_launch(on_a_gpu(), model.decoder, None) is None


def test_an_extension_without_cuda_says_so(monkeypatch):
    """That of this test has no CUDA."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    if hasattr(torch.ops.pybeam, "decoder_layers"):
        pytest.skip("the extension has CUDA")
    cuda_operators.has_operator.cache_clear()
    with pytest.warns(RuntimeWarning, match="built without CUDA kernels"):
        assert not cuda_operators.has_operator("decoder_layers", one_launch.VARIABLE)
    cuda_operators.has_operator.cache_clear()
