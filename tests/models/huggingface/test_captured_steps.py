"""Which wrapped models' steps are CUDA graphs, and that replays of them give the same results."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.engine.cuda_graphs import StepGraphs
from pybeam.engine.workspace import Workspace
from pybeam.models.huggingface import wrap
from support.device_loop import REQUESTS, assert_alike, run, torch_beams
from support.graph_memory import Replays

transformers = pytest.importorskip("transformers")

from support.huggingface_models import DENSE, KINDS, tiny_network  # noqa: E402

SEARCHES = {
    "variable": (
        pybeam.variable_beam(4, 3.0, n_best=2, max_length=12),
        pybeam.Streaming(4, row_budget=9),
    ),
    "processors": (
        pybeam.fixed_beam(
            3,
            n_best=3,
            max_length=12,
            processors=[processors.no_repeat_ngram(2, counts_start=True)],
        ),
        pybeam.Fifo(5),
    ),
    "jacobi": (pybeam.jacobi(max_length=20, min_length=15), pybeam.Fifo(3)),
    "paths": (pybeam.fixed_beam(40, n_best=3, max_length=8), pybeam.Fifo(2)),
}


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DENSE])
def test_what_was_seen_twice_is_replayed(kind, search, graph_memory, monkeypatch):
    model, (algorithm, schedule) = wrap(tiny_network(kind)), SEARCHES[search]
    sources = REQUESTS
    if model.takes_features:
        generator = torch.Generator().manual_seed(1)
        sources = [torch.randn(6, 24, generator=generator) for _ in REQUESTS]
    requests = [pybeam.Request(own, prefix=[8] * (i % 3)) for i, own in enumerate(sources[:6])]
    expected, _ = run(Workspace(model, algorithm, torch_beams()), pybeam.Batch(3), requests)
    # as on a device that it would have to wait for
    monkeypatch.setattr("pybeam.models.prompts.PromptPool.reads_sizes", False)
    workspace = Workspace(model, algorithm, torch_beams())
    replays = Replays(workspace)
    workspace.graphs = StepGraphs(replays)
    # a step is captured when it comes for the second time
    for _ in range(3):
        replays.num_replays = 0
        results, stats = run(workspace, schedule, requests, reads_late=True)
        assert_alike(results, expected)
    assert replays.num_replays == stats.steps


def test_whose_steps_read_positions_are_not_captured():
    """The frequencies of these depend on the longest input."""
    network = tiny_network("llama")
    rope = dict(rope_type="dynamic", factor=2.0, rope_theta=1e4)
    config = transformers.LlamaConfig(**{**network.config.to_dict(), "rope_parameters": rope})
    model = wrap(transformers.LlamaForCausalLM(config).eval())
    assert model.memory.keeps == "tree"
    assert not model.can_capture
    assert "cannot be captured: Waits: " in model.why_not_captured
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=5))
    assert not decoder.decode([[5, 6, 7]])[0].error


def test_what_the_network_was_is_what_it_is():
    """The check at the door leaves nothing behind."""
    network = tiny_network("bart")
    before = dict(vars(network))
    wrap(network)
    assert vars(network) == before


@pytest.mark.slow
@pytest.mark.parametrize("bound", [pytest.param(0, marks=pytest.mark.slow), 16])
def test_biases_without_a_bound_grow_and_are_not_captured(bound):
    """A bound that the config names is not believed if biases change behind it."""
    algorithm, sources = pybeam.greedy(min_length=70, max_length=75), REQUESTS[:2]
    known = wrap(tiny_network("t5"))
    assert known.memory.biases.are_bounded and known.can_capture
    expected = pybeam.Decoder(known, algorithm).decode(sources)
    network = tiny_network("t5")
    # the layers have a number of their own
    network.get_decoder().config.relative_attention_max_distance = bound
    model = wrap(network)
    assert not model.memory.biases.are_bounded and not model.can_capture
    assert "relative_attention_max_distance" in model.why_not_captured
    assert_alike(pybeam.Decoder(model, algorithm).decode(sources), expected)
    assert model.memory.biases.tables[0].shape[1] > 70
