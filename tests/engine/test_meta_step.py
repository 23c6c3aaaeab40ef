"""The device's program on tensors without numbers: nothing is read back, devices do not mix, dtypes fit.

Launches of Triton kernels are recorded and not made. Everything else is the code that a GPU runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.engine.arrivals import IterableArrivals
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.stats import Stats
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from pybeam.models.huggingface import wrap
from pybeam.speech import whisper_timestamps
from support import aot
from support.device_loop import REQUESTS
from support.laws import ALGORITHMS
from support.recipes import RECIPES
from support.tiny_models import save_tiny_model

triton = pytest.importorskip("pybeam.backends.triton", exc_type=ImportError)

CHAIN = (
    processors.temperature(1.5),
    processors.suppress_tokens_at_start([2, 5]),
    processors.suppress_sequences([[9], [7, 8]]),
    processors.repetition_penalty(1.3),
    processors.no_repeat_ngram(2),
    whisper_timestamps(40),
    processors.top_k(30),
    processors.top_p(0.99),
    processors.min_p(0.001),
    processors.suppress_tokens([12], stage="log_probs"),
    processors.eos_penalty(0.9),
    processors.biased_prefix(0.2, [6, 7]),
)
TRIE = processors.allowed_sequences([[i % 45, i % 7 + 3, i % 31 + 3] for i in range(3, 400)])
CASES = {
    **ALGORITHMS,
    **RECIPES,
    "processors": pybeam.fixed_beam(4, n_best=4, max_length=15, processors=CHAIN),
    "trie": pybeam.fixed_beam(4, n_best=4, max_length=15, processors=(TRIE,)),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2, max_length=15), 3, 0.5),
    "sample": pybeam.sample(2, top_k=9, top_p=0.9, min_p=0.01, max_length=15),
    "gumbel": pybeam.fixed_beam(4, max_length=15, processors=(processors.gumbel(3),)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory, device="meta", dtype="bfloat16")


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", CASES)
def test_open_step_finished_close(model, name, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    assert aot.recorded(lambda: drive(model, CASES[name]))


WRAPPED = (
    *("bart", "nllb", "marian", "pegasus", "mbart", "whisper", "t5"),
    *("llama", "gpt2", "qwen", "mistral", "gemma", "gptoss"),
)
SEARCHES = {
    "fixed": pybeam.fixed_beam(3, max_length=15),
    "processors": CASES["processors"],
    "jacobi": pybeam.jacobi(max_length=15),
}


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped_models(kind, search, monkeypatch):
    pytest.importorskip("transformers")
    from pybeam.models.huggingface.model import EncoderStates
    from support.huggingface_models import tiny_network

    network = tiny_network(kind).bfloat16()
    # other masks are made after a look at the padding of prompts
    network.set_attn_implementation("eager")
    model = wrap(network)
    assert model.can_capture
    network.to("meta")
    model.device = network.device
    if model.memory.biases is not None:
        model.memory.biases.tables = [table.to("meta") for table in model.memory.biases.tables]
    # a session compares tables of positions when it begins
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    sources: Sequence[Any] = REQUESTS
    if model.is_encoder_decoder:
        size = model.decoder.config.hidden_size
        states = [torch.empty(len(ids), size, device="meta").bfloat16() for ids in REQUESTS]
        sources = [EncoderStates(own) for own in states]
    assert aot.recorded(lambda: drive(model, SEARCHES[search], sources))


def test_a_processor_that_reads_shows(model, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    reads = processors.from_function(lambda logits, rows: logits - logits.max().item())
    with pytest.raises(NotImplementedError, match="meta tensor"):
        aot.recorded(lambda: drive(model, pybeam.greedy(max_length=5, processors=(reads,))))


@torch.inference_mode()
def drive(model, algorithm: pybeam.Algorithm, sources: Sequence[Any] = REQUESTS) -> None:
    """Admit sources, take steps, and close them, without reading anything."""
    schedule = pybeam.Fifo(5)
    if algorithm.draft is not None:
        draft = algorithm.draft.for_sources(schedule.n)
        algorithm = dataclasses.replace(algorithm, draft=draft)
    workspace = Workspace(model, algorithm, triton)
    engine = Engine(workspace, schedule, Stats(), StreamOptions(log_probs=True, reads_late=True))
    requests = [pybeam.Request(s, prefix=[4] * (i % 3)) for i, s in enumerate(sources)]
    engine._begin(IterableArrivals(requests))
    assert not list(engine._admit())
    for _ in range(3):
        engine._advance()
        assert not engine._pending[-1].errors, engine._pending[-1].errors
    slots = engine._live.slots
    workspace.state.finished(slots, [1] * len(slots), 8, wants_log_probs=True)
    workspace.close(list(slots), 3)
