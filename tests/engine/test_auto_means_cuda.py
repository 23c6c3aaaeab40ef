"""With `device="auto"` on a machine with a GPU, what works on a CPU works there, with the same results.

The GPU is that of `support.pretended_gpu`, on which a tensor of the host beside one of the device raises.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("llguidance", reason="llguidance is not installed")

import pybeam
from law.grammars import LETTERS, NESTED
from pybeam import processors
from pybeam.backends.waiting import NoWaiting, Waits
from pybeam.catalogue import allowed_items
from pybeam.engine.cuda_graphs import StepGraphs, capture_between_steps
from support.built_in_models import saved
from support.device_loop import REQUESTS, assert_alike, never_waiting_between_steps
from support.graph_memory import Recomputed
from support.laws import ALGORITHMS
from support.pretended_gpu import GPU, pretended
from support.recipes import RECIPES
from support.rules import RULES
from support.speech_models import random_features

# kinds that listen, and their number of features
SPEECH = {"Speech2Text": 6, "Whisper": 6, "FireRedASR": 14}
CAUSAL = ("causal-gemma3", "causal-qwen3_moe", "causal-bloom", "causal-falcon")
KINDS = (*CAUSAL, "m2m_100", "t5", "rnn", "ensemble", *SPEECH)
CHAIN = (
    processors.temperature(1.5),
    processors.suppress_tokens_at_start([3, 5]),
    processors.suppress_sequences([[9], [7, 8]]),
    processors.repetition_penalty(1.3, counts_start=True),
    processors.no_repeat_ngram(2),
    processors.top_k(30),
    processors.top_p(0.99),
    processors.min_p(0.001),
    processors.suppress_tokens([12], stage="log_probs"),
    processors.eos_penalty(0.9),
    processors.biased_prefix(0.2, [6, 7]),
    processors.gumbel(3),
)
ITEMS = pybeam.Catalogue.build([[3 + i % 40, i % 7 + 3, i % 31 + 3] for i in range(200)])
SEARCHES = {
    **ALGORITHMS,
    **RECIPES,
    "processors": pybeam.fixed_beam(4, n_best=4, max_length=15, processors=CHAIN),
    "sample": pybeam.sample(2, top_k=30, top_p=0.9, min_p=0.01, max_length=9),
    "grammar": pybeam.fixed_beam(
        4, n_best=4, max_length=9, processors=[processors.grammar(NESTED, LETTERS)]
    ),
    "items": pybeam.fixed_beam(4, max_length=9, processors=(allowed_items(ITEMS),)),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2, max_length=15), 3, 0.5),
    "rule": pybeam.fixed_beam(3, n_best=2, max_length=9, processors=[RULES["all"][0]]),
    "rule, held": pybeam.variable_beam(3, max_length=9, processors=[RULES["all"][0]]),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return saved("m2m_100", tmp_path_factory.mktemp("m2m_100"))


def searched(model, algorithm, sources) -> list:
    """Return results of these sources, and of a score of the first one."""
    requests = [pybeam.Request(own, prefix=[8] * (i % 3)) for i, own in enumerate(sources)]
    requests.append(pybeam.Request(sources[0], target=[8, 6, 9]))
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(3), log_probs=True, graphs=False)
    return decoder.decode(requests)


def same(monkeypatch, make, call) -> None:
    """Check that `call` gives the same for the model that `make` makes on a CPU and on the GPU."""
    expected = call(make("cpu"))
    with pretended(monkeypatch):
        model = make("auto")
        assert model.device == GPU
        assert_alike(call(model), expected)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", SEARCHES)
def test_searches(name, directory, monkeypatch):
    def call(model):
        return searched(model, SEARCHES[name], REQUESTS[:3])

    same(monkeypatch, lambda device: pybeam.load_model(directory, device=device), call)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_models(kind, tmp_path, monkeypatch):
    directory, sources = saved(kind, tmp_path), REQUESTS[:3]
    if kind in SPEECH:
        sources = random_features(3, num_features=SPEECH[kind])
    same(
        monkeypatch,
        lambda device: pybeam.load_model(directory, device=device),
        lambda model: searched(model, SEARCHES["variable"], sources),
    )


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["adaptive", "processors"])
def test_nobody_waits_between_steps(name, directory, monkeypatch):
    """Where beams come and go, the host waits for none of its numbers to arrive."""
    never_waiting_between_steps(monkeypatch)
    with pretended(monkeypatch):
        searched(pybeam.load_model(directory), SEARCHES[name], REQUESTS[:3])
        number, index = torch.zeros(3, device="cuda"), torch.tensor([1], device="cuda")
        with NoWaiting(uploads=True):
            number.index_fill_(0, index, 1)
            with pytest.raises(Waits, match="number of the host"):
                number[index] = 1
            with pytest.raises(Waits, match="from cpu to cuda"):
                torch.tensor([1], device="cuda")


@pytest.mark.parametrize(
    "kind", ["m2m_100", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SPEECH)]
)
def test_what_is_captured_gets_its_numbers_on_the_device(kind, tmp_path, monkeypatch):
    directory, sources = saved(kind, tmp_path), REQUESTS[:3]
    if kind in SPEECH:
        sources = random_features(3, num_features=SPEECH[kind])
    requests = [pybeam.Request(own, max_length=3) for own in sources]

    def call(model):
        decoder = pybeam.Decoder(model, SEARCHES["fixed"], pybeam.Fifo(3), graphs=False)
        decoder.decode(requests)
        if model.device == GPU:
            [workspace] = decoder._idle
            # a new program
            workspace.state._bound = None, None, None
            workspace.graphs = StepGraphs(Recomputed(), device=GPU)
            capture_between_steps(workspace)
            for _ in range(2):
                decoder.decode(requests)
            assert len(workspace.graphs) > 4
            assert "encode" in {key[0] for key in workspace.graphs._graphs}
        return decoder.decode(requests)

    same(monkeypatch, lambda device: pybeam.load_model(directory, device=device), call)


def test_tensors_of_two_places_do_not_mix(monkeypatch):
    with pretended(monkeypatch):
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert (there * 2).device == GPU and there.cpu().device.type == "cpu"
        with pytest.raises(RuntimeError, match=r"aten::add mixes .* the host, \[\[3\]\]"):
            here + there
        with pytest.raises(RuntimeError, match="mixes"):
            there[torch.tensor([0, 1])]
