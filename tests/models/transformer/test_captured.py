"""An encoder that is replayed gives what it gives source by source, and comes in few sizes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import pybeam
from pybeam.backends import defaults
from pybeam.engine.cuda_graphs import StepGraphs, capture_between_steps
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.prompts import PromptPool
from pybeam.models.transformer.captured import _sizes
from support.causal_models import save_tiny_causal
from support.device_loop import assert_alike, run, torch_beams
from support.graph_memory import Recomputed
from support.tiny_models import save_tiny_model


@pytest.mark.parametrize("kind", ["m2m_100", "t5"])
def test_sources_are_encoded_as_without_graphs(kind, tmp_path):
    """In batches of other sizes, with growing tables, and in slots that are used again."""
    save_tiny_model(tmp_path, kind)
    model = load_model(tmp_path)
    # a GPU has no program of a stack
    backend = SimpleNamespace(**{**vars(torch_beams()), "layer_program": defaults.no_program})
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=6)
    requests = [[5 + i % 20, 7, 9][: 1 + i % 3] * (1 + i % 5) for i in range(24)] + [[4] * 30]
    plain = Workspace(model, algorithm, backend)
    expected, _ = run(plain, pybeam.Fifo(5), requests)
    workspace, keys = Workspace(model, algorithm, backend), []
    workspace.graphs = StepGraphs(Recomputed())

    capture_between_steps(workspace)
    replay = workspace.session.replay
    workspace.session.replay = lambda key, *given: keys.append(key) or replay(key, *given)
    # the last source is longer than lines of the table have been
    for schedule, num in ((pybeam.Fifo(5), 24), *[(pybeam.Batch(6), 25)] * 3):
        keys.clear()
        results, _ = run(workspace, schedule, requests[:num], reads_late=True)
        assert_alike(results, expected[:num])
    captured = set(workspace.graphs._graphs)
    assert len(keys) > 1 and set(keys) <= captured
    assert {key[0] for key in captured} >= {
        ("open", model.start_id),
        ("finished", 16, False),
        "close",
    }


@pytest.mark.parametrize("kind", ["mistral", "bloom"])
def test_prompts_are_read_as_without_graphs(kind, tmp_path, monkeypatch):
    """In blocks of other sizes, some of which share what they begin with."""
    # a GPU reads no sizes back
    monkeypatch.setattr(PromptPool, "reads_sizes", False)
    save_tiny_causal(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    # else the second time all prompts would be known
    model.prefix_cache_bytes = 0
    backend = SimpleNamespace(**{**vars(torch_beams()), "layer_program": defaults.no_program})
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=5)
    shared = [5, 7, 9, 11] * 5
    requests = [shared + [5 + i % 20, 7, 9][: 1 + i % 3] * (1 + i % 5) for i in range(12)]
    plain = Workspace(model, algorithm, backend)
    expected, _ = run(plain, pybeam.Fifo(3), requests)
    workspace, keys = Workspace(model, algorithm, backend), []
    workspace.graphs = StepGraphs(Recomputed())
    capture_between_steps(workspace)
    replay = workspace.session.replay
    workspace.session.replay = lambda key, *given: keys.append(key) or replay(key, *given)
    for schedule, num in ((pybeam.Fifo(3), 12), (pybeam.Fifo(3), 5), *[(pybeam.Batch(4), 12)] * 3):
        results, _ = run(workspace, schedule, requests[:num], reads_late=True)
        assert_alike(results, expected[:num])
    captured = {key for key in workspace.graphs._graphs if key[0] == "prompts"}
    assert {key[0] for key in keys} == {"prompts"} and captured
    assert len(set(keys)) < len(keys)


def test_sizes_are_few():
    sizes = {_sizes(1, num)[1] for num in range(4097)}
    assert len(sizes) < 20 and all(_sizes(1, num)[1] < 1.5 * num for num in range(33, 4097))
    assert [_sizes(num, 1)[0] for num in (1, 2, 3, 5, 64)] == [1, 2, 4, 8, 64]
