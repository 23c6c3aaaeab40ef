"""Searches that select from the peaks of an output layer have the results of those that read all logits."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.ensemble import Ensemble
from pybeam.models.transformer import cuda_operators, peaked_output
from support import one_launch, peaked
from support.built_in_models import saved
from support.cuda_on_cpu import TILES
from support.cuda_on_cpu import Peaked as OnCpu
from support.device_loop import assert_alike, run
from support.marian_folders import SSRU, write_folder
from support.one_launch import ALGORITHMS, CHOOSING, layers_by_address, on_a_gpu
from support.peaked import Peaked
from support.tiny_models import save_tiny_model

pytest.importorskip("triton", reason="triton is not installed")

REFERENCE = backends.load("reference")
REQUESTS = [[5, 7, 9], [6, 8], [7, 7, 5, 6, 8]]


@pytest.fixture
def output(monkeypatch) -> Peaked:
    monkeypatch.setattr(cuda_operators, "DTYPES", (torch.float32,))
    return peaked.installed(monkeypatch, REFERENCE.select)


def written(kind: str, folder) -> None:
    if kind.startswith("causal"):
        saved(kind, folder)
    elif kind == "marian-ssru":
        write_folder(folder, 3, **SSRU)
    else:
        save_tiny_model(folder, kind)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", ["m2m_100", "bart-gelu_new", "t5", "marian", "causal-qwen3"])
def test_as_from_all_logits(kind, tmp_path, output):
    written(kind, tmp_path)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, n_best=2, max_length=6)
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), REQUESTS)
    assert not output.num_rows
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), REQUESTS)
    assert_alike(results, expected)
    assert len(output.num_rows) == stats.steps


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("schedule", [pybeam.Batch(2), pybeam.Streaming(9)], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_searches(name, schedule, tmp_path, output):
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device="cpu")
    given = schedule, [pybeam.Request([6, 8], prefix=[9, 5, 7]), *REQUESTS]
    expected, _ = run(Workspace(model, ALGORITHMS[name], REFERENCE), *given)
    results, _ = run(Workspace(model, ALGORITHMS[name], on_a_gpu()), *given)
    assert bool(output.num_rows) == (name in CHOOSING)
    assert_alike(results, expected)


@pytest.mark.parametrize("what", ["target", "ensemble"])
def test_logits_that_somebody_changes_are_not_selected_from(what, tmp_path, output):
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device="cpu")
    request = pybeam.Request([6, 8], target=[9, 5]) if what == "target" else [6, 8]
    if what == "ensemble":
        model = Ensemble([model, model])
    given = pybeam.Batch(2), [request, request]
    algorithm = pybeam.fixed_beam(3, max_length=6)
    expected, _ = run(Workspace(model, algorithm, REFERENCE), *given)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), *given)
    assert not output.num_rows
    assert_alike(results, expected)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", CHOOSING)
def test_searches_take_the_kernel(name, tile, tmp_path, monkeypatch, cuda_on_cpu):
    """The CUDA C++ kernel itself, on this CPU, in searches of float16."""
    kernel = OnCpu(cuda_on_cpu, *TILES[tile])
    output = peaked.installed(monkeypatch, kernel.select)
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device="cpu", dtype="float16")
    algorithm = ALGORITHMS[name]
    expected, _ = run(Workspace(model, algorithm, REFERENCE), pybeam.Batch(2), REQUESTS)
    results, stats = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), REQUESTS)
    assert len(output.num_rows) == stats.steps
    assert_alike(results, expected)


@pytest.mark.parametrize("kind", ["marian-ssru", "causal-gemma2"])
def test_other_models_are_left_to_select(kind, tmp_path, output):
    """One whose session has a step of its own, and one that bends its logits."""
    written(kind, tmp_path)
    model = load_model(tmp_path, device="cpu")
    algorithm = pybeam.fixed_beam(3, max_length=6)
    results, _ = run(Workspace(model, algorithm, on_a_gpu()), pybeam.Batch(2), [[5, 7, 9]])
    assert results[0].error is None and not output.num_rows


def test_all_layers_in_one_launch_come_first(tmp_path, monkeypatch):
    """Rows that the launch does not take have the output layer's kernel."""
    monkeypatch.setattr(cuda_operators, "DTYPES", (torch.float32,))
    output = peaked.installed(monkeypatch, REFERENCE.select)
    layers = one_launch.installed(monkeypatch, layers_by_address)
    layers.select_peaked = output.select_peaked
    save_tiny_model(tmp_path, "m2m_100", d_model=64, decoder_attention_heads=1)
    model = load_model(tmp_path, device="cpu")
    work = Workspace(model, pybeam.fixed_beam(3, max_length=6), on_a_gpu())
    _, stats = run(work, pybeam.Batch(30), REQUESTS * 10)
    assert max(layers.num_rows) <= one_launch.MOST_ROWS < max(output.num_rows)
    assert layers.num_chosen + output.num_chosen == stats.steps


def test_it_is_off(tmp_path, output, monkeypatch):
    monkeypatch.setattr(peaked_output, "IS_ON", False)
    save_tiny_model(tmp_path, "m2m_100")
    model = load_model(tmp_path, device="cpu")
    assert peaked_output.with_peaks(None, model.decoder, model.output, None) is None
