"""A prefix is read at once, and results are to the bit those of reading it token by token."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.engine.room import Room
from pybeam.models.transformer.model import TransformerSession
from pybeam.state import reading
from support.built_in_models import saved
from support.laws import decoded, essence
from support.threads import every_thread_count

PREFIX = [5, 9, 6, 8, 7, 5, 10, 11, 5, 9, 3, 12, 13, 5, 6, 8, 7, 9, 10, 3, 5]
SCORED = pybeam.limits.PrefixRule(is_scored=True, in_length=True)
LENGTHS = (0, 1, 2, 3, 17, 21)
CHAIN = (processors.repetition_penalty(1.3), processors.no_repeat_ngram(2))
SEARCHES = {
    "fixed": pybeam.fixed_beam(3, n_best=3, max_length=9),
    "variable": pybeam.variable_beam(4, threshold=2.0, max_length=9, processors=CHAIN),
    "optimal": pybeam.optimal_beam(3, 0.5, 1.5, max_length=9),
    "by step": pybeam.fixed_beam([2, 4], max_length=9),
    "paths": pybeam.fixed_beam(40, n_best=3, max_length=5),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2, max_length=9), 2, 0.5),
    "sampled": pybeam.stochastic_beam(4, seed=3, max_length=9),
}
SCHEDULES = {
    "one": pybeam.Batch(1),
    "batch": pybeam.Batch(6),
    "streaming": pybeam.Streaming(3),
    "flush": pybeam.Streaming(3, flush=4),
    "fifo": pybeam.Fifo(3, row_budget=45),
}
KINDS = ("m2m_100", "bart", "t5", "Whisper", "FireRedASR", "ensemble")


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    loaded = {}

    def load(kind, dtype="float32"):
        if (kind, dtype) not in loaded:
            paths = saved(kind, tmp_path_factory.mktemp(kind))
            loaded[kind, dtype] = pybeam.load_model(
                paths[0] if len(paths) == 1 else paths, dtype=dtype
            )
        return loaded[kind, dtype]

    return load


def requests_of(model) -> list[pybeam.Request]:
    generator = torch.Generator().manual_seed(5)
    sources = [[4, 5, 6, 2], [7, 8, 2], [9, 2], [4, 2], [6, 6, 2], [8, 9, 4, 2]]
    if model.takes_features:
        frames = 100 if "whisper" in repr(model) else 60
        size = model.config.front.num_features
        sources = [torch.randn(frames, size, generator=generator) for _ in sources]
    return [
        pybeam.Request(source, prefix=PREFIX[:length] or None)
        for source, length in zip(sources, LENGTHS, strict=True)
    ]


def noted(monkeypatch) -> list[int]:
    """Count the rows of each call that reads."""
    sizes, read = [], TransformerSession.read

    def count(self, rows):
        sizes.append(rows.token.numel())
        read(self, rows)

    monkeypatch.setattr(TransformerSession, "read", count)
    return sizes


def token_by_token(monkeypatch, model, search, requests, backend="native"):
    with monkeypatch.context() as patch:
        patch.setattr(TransformerSession, "can_read", False)
        return decoded(model, search, pybeam.Batch(1), backend, requests, log_probs=True)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_results_are_the_same(monkeypatch, load, kind, dtype, search, schedule):
    model, algorithm = load(kind, dtype), SEARCHES[search]
    requests = requests_of(model)
    expected = token_by_token(monkeypatch, model, algorithm, requests)
    assert [result.error for result in expected] == [None] * len(requests)
    sizes = noted(monkeypatch)
    # parts of prefixes are read with parts of others
    monkeypatch.setattr(reading, "BLOCK", 7)
    for _ in every_thread_count() if schedule == "batch" else range(1):
        found = decoded(model, algorithm, SCHEDULES[schedule], "native", requests, log_probs=True)
        assert essence(found) == essence(expected)
    torch.set_num_threads(1)
    # its state goes from token to token
    assert max(sizes, default=0) == (0 if search == "sampled" else 7)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["m2m_100", "t5"])
def test_the_reference_reads_the_same_tokens(monkeypatch, load, kind):
    model, search = load(kind), pybeam.fixed_beam(2, max_length=3)
    requests = requests_of(model)[2:5]
    expected = token_by_token(monkeypatch, model, search, requests, "reference")
    sizes = noted(monkeypatch)
    found = decoded(model, search, pybeam.Batch(6), "reference", requests)
    assert sizes == [2 + 3 + 17]
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
        scores = [[h.score for h in result.hypotheses] for result in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("search", ["fixed", "variable", "by step"])
def test_a_target_behind_a_prefix_is_scored_as_before(monkeypatch, load, search):
    """And there are pages for all that is read."""
    model, algorithm = load("m2m_100"), SEARCHES[search]
    requests = [dataclasses.replace(one, target=[6, 7, 5]) for one in requests_of(model)]
    expected = token_by_token(monkeypatch, model, algorithm, requests)
    assert max(result.steps for result in expected) == 21 + 4
    sizes, pages, claim = noted(monkeypatch), [], Room.claim

    def claimed(self, num_sources, num_more=0, num_steps=1):
        pages.append(num_more)
        claim(self, num_sources, num_more, num_steps)

    monkeypatch.setattr(Room, "claim", claimed)
    found = decoded(model, algorithm, pybeam.Batch(6), "native", requests, log_probs=True)
    for one, other in zip(found, expected, strict=True):
        assert one.error is None and one.hypotheses == other.hypotheses
    assert sizes == [2 + 3 + 17 + 21]
    assert max(pages) == 1 + 1 + 2 + 2


@dataclasses.dataclass(frozen=True)
class Reader(processors.Processor):
    """Reads logits of the last places of a prefix."""

    prefix_reach = 4

    def __call__(self, logits, rows, data):
        SEEN.extend(rows.num_generated.tolist())
        return logits


SEEN: list[int] = []


def test_a_processor_sees_the_places_that_it_reads(monkeypatch, load):
    model = load("m2m_100")
    search = dataclasses.replace(SEARCHES["fixed"], processors=(Reader(),))
    [request] = requests_of(model)[-1:]
    expected = token_by_token(monkeypatch, model, search, [request])
    sizes = noted(monkeypatch)
    SEEN.clear()
    assert essence(
        decoded(model, search, pybeam.Batch(1), "native", [request], log_probs=True)
    ) == essence(expected)
    assert sizes == [17] and min(SEEN) == -4


@pytest.mark.parametrize(
    "search",
    [
        pybeam.fixed_beam(3, max_length=9, prefix=SCORED),
        pybeam.jacobi(max_length=9),
        pybeam.fixed_beam(3, max_length=9, processors=[lambda logits, rows: logits]),
    ],
    ids=["scored", "guesses", "function"],
)
def test_what_needs_logits_is_read_in_steps(monkeypatch, load, search):
    sizes = noted(monkeypatch)
    request = pybeam.Request([4, 5, 2], prefix=PREFIX)
    [result] = pybeam.Decoder(load("m2m_100"), search).decode([request])
    assert result.hypotheses and not sizes


def test_a_start_of_its_own_and_partial_results(monkeypatch, load):
    requests = [pybeam.Request([4, 5, 2], prefix=PREFIX[:9], start=7) for _ in range(2)]
    model, search = load("m2m_100"), SEARCHES["fixed"]
    expected = token_by_token(monkeypatch, model, search, requests)
    news = list(pybeam.Decoder(model, search, log_probs=True).stream(requests, partial=True))
    found = [one for one in news if isinstance(one, pybeam.Result)]
    assert [r.hypotheses for r in found] == [r.hypotheses for r in expected]
    certain = [one.tokens for one in news if not isinstance(one, pybeam.Result)]
    assert all(tokens[:9] == PREFIX[:9] for tokens in certain)


def test_who_cannot_be_read_leaves_alone(monkeypatch, load):
    model, search = load("m2m_100"), SEARCHES["fixed"]
    requests = requests_of(model)
    expected = token_by_token(monkeypatch, model, search, requests)
    read = TransformerSession.read

    def broken(self, rows):
        if (rows.token == 13).any():
            raise RuntimeError("13 is read")
        read(self, rows)

    monkeypatch.setattr(TransformerSession, "read", broken)
    found = decoded(model, search, pybeam.Batch(6), "native", requests, log_probs=True)
    assert [str(result.error) for result in found] == ["None"] * 4 + ["13 is read"] * 2
    assert essence(found[:4]) == essence(expected[:4])
