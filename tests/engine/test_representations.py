"""Masks or paths: a search does not depend on how the token tree says what rows see."""

from __future__ import annotations

import pytest

import pybeam
from pybeam.contracts import MASK_WIDTH
from pybeam.kvcache import token_tree
from pybeam.models import load_model
from support.causal_models import KINDS, save_tiny_causal
from support.front_ends import onnx_model, sources, wrapped
from support.laws import ALGORITHMS, decoded, essence, some_schedules
from support.search_models import random_model
from support.tiny_models import save_tiny_model

# attention in one object, attention by operators, caches of every kind
BUILT_IN = ("m2m_100", "marian", "bart", "t5", "qwen3", "gemma3", "mistral")
WRAPPED = ("nllb", "gpt2", "mistral", "t5", "gemma", "gptoss", "bloom")


@pytest.fixture
def with_paths(monkeypatch, device):
    """Call it, and trees that are made from then on have paths. Those made before have masks."""
    monkeypatch.setitem(token_tree.WIDEST_WITH_MASKS, device.type, MASK_WIDTH)

    def switch() -> None:
        monkeypatch.setitem(token_tree.WIDEST_WITH_MASKS, device.type, 0)

    return switch


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(backend, name, with_paths):
    model, algorithm = random_model(7, eos_bonus=0.5), ALGORITHMS[name]
    expected = essence(decoded(model, algorithm, pybeam.Batch(4), backend))
    with_paths()
    for schedule in some_schedules(name, 1, num=6):
        assert essence(decoded(model, algorithm, schedule, backend)) == expected, schedule


def outputs(model, backend: str, algorithm=None) -> list:
    algorithm = algorithm or pybeam.variable_beam(6, threshold=4.0, n_best=6, max_length=9)
    decoder = pybeam.Decoder(model, algorithm, pybeam.Streaming(3), backend=backend)
    requests = [
        pybeam.Request(source, prefix=[5, 8] if i == 2 else None, target=[4, 9] if i == 3 else None)
        for i, source in enumerate(sources(6))
    ]
    return [
        [(h.tokens, h.score, h.ended) for h in result.hypotheses]
        for result in decoder.decode(requests)
    ]


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("kind", BUILT_IN)
def test_built_in_models(backend, kind, with_paths, tmp_path):
    if backend == "triton":
        pytest.skip("a GPU is not asked for bits")
    save = save_tiny_causal if kind in KINDS else save_tiny_model
    save(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    expected = outputs(model, backend)
    with_paths()
    assert outputs(model, backend) == expected


def assert_near(actual: list, expected: list) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert [tokens for tokens, *_ in ours] == [tokens for tokens, *_ in theirs]
        assert [score for _, score, _ in ours] == pytest.approx([s for _, s, _ in theirs], abs=1e-4)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped_models(kind, with_paths, device):
    model = wrapped(kind, device)
    expected = outputs(model, "auto")
    with_paths()
    assert_near(outputs(model, "auto"), expected)


def test_exported_models(with_paths, tmp_path_factory, device):
    model = onnx_model(tmp_path_factory, device)
    expected = outputs(model, "auto")
    with_paths()
    assert_near(outputs(model, "auto"), expected)
