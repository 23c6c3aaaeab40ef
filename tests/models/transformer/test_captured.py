"""An encoder that is replayed gives what it gives source by source, and comes in few sizes."""

from __future__ import annotations

from bisect import bisect_left
from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends import defaults, poison
from pybeam.engine.cuda_graphs import StepGraphs, capture_between_steps
from pybeam.engine.workspace import Workspace
from pybeam.export import convert_fireredasr
from pybeam.models import load_model, weights
from pybeam.models.prompts import PromptPool
from pybeam.models.transformer import captured
from pybeam.models.transformer import model as transformer
from pybeam.models.transformer.captured import _sizes
from pybeam.models.transformer.sources import SharedFeatures
from support.causal_models import save_tiny_causal
from support.device_loop import assert_alike, run, torch_beams
from support.fireredasr_files import save_published
from support.graph_memory import Recomputed, Replays
from support.speech_models import save_tiny_speech_model
from support.tiny_models import save_tiny_model


@pytest.mark.thinned(most=1)
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
    known = set(workspace.graphs._graphs)
    assert len(keys) > 1 and set(keys) <= known
    assert {key[0] for key in known} >= {
        ("open", model.start_id),
        ("finished", 16, False),
        "close",
    }


@pytest.mark.slow
@pytest.mark.parametrize("graph_memory", ["2.12"], indirect=True)
@pytest.mark.parametrize("kind", ["Whisper", "Speech2Text", "FireRedASR"])
def test_sound_is_encoded_as_without_graphs(kind, tmp_path, graph_memory, monkeypatch):
    """In batches of other sizes, windows that requests share among them, and one that is too long."""
    monkeypatch.setattr(captured, "MOST_POSITIONS", 40)
    monkeypatch.setattr(transformer, "CPU_ENCODER_TOKENS", 40)
    model = heard(kind, tmp_path, monkeypatch)
    backend = SimpleNamespace(**{**vars(torch_beams()), "layer_program": defaults.no_program})
    algorithm = pybeam.greedy(max_length=3)
    # one frame, none, exactly a bucket, odd numbers, and more positions than are captured
    front = model.config.sound
    sixteen, many = (bisect_left(range(400), n, key=front.num_positions) for n in (16, 41))
    generator = torch.Generator().manual_seed(3)
    features = [
        torch.randn(length, front.num_features, generator=generator)
        for length in (1, 0, sixteen, 37, 7, many, 2, 9)
    ]
    requests = [features[i % 8] for i in range(15)]
    expected, _ = run(Workspace(model, algorithm, backend), pybeam.Fifo(3), requests)
    workspace = Workspace(model, algorithm, backend)
    capture = Replays(workspace)
    workspace.graphs = StepGraphs(capture)
    capture_between_steps(workspace)
    replay, last = workspace.session.replay, torch.zeros(1)

    def overwriting(*given):
        nonlocal last
        poison.forget([last])
        last = replay(*given)
        return last

    workspace.session.replay = overwriting
    for schedule in (pybeam.Fifo(3), *[pybeam.Batch(5)] * 3):
        # two requests have the third recording, two have the seventh
        shared = [SharedFeatures(one) for one in features]
        given = [shared[i % 8] if i % 4 == 2 else requests[i] for i in range(15)]
        results, _ = run(workspace, schedule, given, reads_late=True)
        assert_alike(results, expected)
        assert_shared(model, shared[2:7:4])
    assert sum(key[0] == "encode" for key in workspace.graphs._graphs) > 1


def heard(kind, folder, monkeypatch):
    """Load a tiny model that hears, with layers of torch, as on a GPU."""
    monkeypatch.setattr(weights, "can_pack", lambda *_: False)
    if kind == "FireRedASR":
        save_published(folder / "published", seed=14, eos_nats=3.0)
        convert_fireredasr(folder / "published", folder / "model")
        return load_model(folder / "model", device="cpu")
    save_tiny_speech_model(folder, kind=kind, max_source_positions=80)
    return load_model(folder, device="cpu")


def assert_shared(model, shared) -> None:
    """Check the states that requests share against those of each alone."""
    session = model.session(backends.load("reference"))
    for one in shared:
        expected = session.encoder_states([one.features])
        torch.testing.assert_close(one.states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
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
    known = {key for key in workspace.graphs._graphs if key[0] == "prompts"}
    assert {key[0] for key in keys} == {"prompts"} and known
    assert len(set(keys)) < len(keys)


def test_sizes_are_few():
    sizes = {_sizes(1, num)[1] for num in range(4097)}
    assert len(sizes) < 20 and all(_sizes(1, num)[1] < 1.5 * num for num in range(33, 4097))
    assert [_sizes(num, 1)[0] for num in (1, 2, 3, 5, 64)] == [1, 2, 4, 8, 64]


def test_what_requests_share_is_encoded_once():
    new, known = SharedFeatures(torch.ones(3, 2)), SharedFeatures(torch.ones(3, 2))
    known.states = torch.ones(3, 4)
    assert captured._without_states([new, new.features, known, new, new.features]) == [0, 1, 4]
