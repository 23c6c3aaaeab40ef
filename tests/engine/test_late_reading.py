"""The host may read late with every front end: same results, and no step of its own waits."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.backends.waiting import HostReadGuard, NoWaiting
from pybeam.engine.engine import Engine
from pybeam.engine.workspace import Workspace
from pybeam.models import Ensemble, FunctionModel, load_model
from support.device_loop import assert_alike, run, torch_beams
from support.front_ends import VOCAB, hashed, onnx_model, wrapped
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

# those whose steps wait for something that is not ours
WAITS = ("function", "onnx", "onnx-rnn", "wrapped-bloom", "wrapped-mamba")
COUNTING = [
    processors.repetition_penalty(1.4, counts_start=True),
    processors.no_repeat_ngram(2, counts_start=True),
    processors.suppress_sequences([[5, 6], [7]], counts_start=True),
]
SEARCHES = [
    (pybeam.variable_beam(4, 3.0, n_best=2, max_length=9), pybeam.Streaming(3, row_budget=7)),
    (pybeam.fixed_beam(3, n_best=3, max_length=9, processors=COUNTING), pybeam.Fifo(3)),
]
OVER_THE_TREE = ("wrapped-bart", "wrapped-t5", "wrapped-mistral", "wrapped-gemma", "wrapped-gptoss")
FRONT_ENDS = ("rnn", "speech", "ensemble", *OVER_THE_TREE, *WAITS)
MORE = ("wrapped-whisper", "wrapped-llama", "wrapped-gpt2", "wrapped-nllb")


def front_end(name: str, factory):
    """The model and its sources."""
    cpu = torch.device("cpu")
    ids = [[5 + i % 20, 7, 9] * (1 + i % 3) for i in range(5)]
    if name.startswith("wrapped-"):
        kind = name.removeprefix("wrapped-")
        generator = torch.Generator().manual_seed(1)
        features = [torch.randn(6, 24, generator=generator) for _ in ids]
        return wrapped(kind, cpu), features if kind == "whisper" else ids
    if name == "function":
        return FunctionModel(hashed, VOCAB, bos_id=0, eos_id=1), ids
    if name == "onnx":
        return onnx_model(factory, cpu), ids
    if name == "onnx-rnn":
        return onnx_model(factory, cpu, save_tiny_rnn), ids
    directory = factory.mktemp(name)
    if name == "speech":
        save_tiny_speech_model(directory)
        return load_model(directory), random_features(5)
    if name == "rnn":
        save_tiny_rnn(directory)
        return load_model(directory), ids
    save_tiny_model(directory, "bart")
    return Ensemble([load_model(directory), wrapped("bart", cpu)]), ids


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "name", [*FRONT_ENDS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_same_results(name, tmp_path_factory, monkeypatch):
    model, sources = front_end(name, tmp_path_factory)
    # as on a device that it would have to wait for
    monkeypatch.setattr("pybeam.models.prompts.PromptPool.reads_sizes", False)
    advance = Engine._advance

    def guarded(self):
        waits = name in WAITS or not self._wants.reads_late
        with nullcontext() if waits else NoWaiting(), nullcontext() if waits else HostReadGuard():
            advance(self)

    monkeypatch.setattr(Engine, "_advance", guarded)
    requests = [
        pybeam.Request(own, source_id=i, prefix=[8] * (i % 3 == 1), width=3 + i % 2)
        for i, own in enumerate(sources)
    ]
    for algorithm, schedule in SEARCHES:
        workspace = Workspace(model, algorithm, torch_beams())
        expected, _ = run(workspace, pybeam.Batch(3), requests)
        workspace = Workspace(model, algorithm, torch_beams())
        results, _ = run(workspace, schedule, requests, reads_late=True)
        assert_alike(results, expected)
        assert any(len(result.hypotheses) > 1 for result in results)
