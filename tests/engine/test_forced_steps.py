"""Steps in which every token is forced compute no logits, and results are to the bit the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.engine.live_sources import LiveSources
from pybeam.models.linear import PackedLinear
from pybeam.models.transformer.model import TransformerSession
from support.tiny_models import save_tiny_model

PREFIX = [5, 9, 6, 8, 7, 5]
CHAIN = (processors.repetition_penalty(1.3), processors.no_repeat_ngram(2))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return pybeam.load_model(directory)


@pytest.fixture(autouse=True)
def _reads_in_steps(monkeypatch):
    """A prefix that is read at once has no steps."""
    monkeypatch.setattr(TransformerSession, "can_read", False)


@dataclasses.dataclass(frozen=True)
class Reader(processors.Processor):
    """Reads logits of the last places of a prefix."""

    prefix_reach = 2

    def __call__(self, logits, rows, data):
        near = (rows.num_generated >= -2) & (rows.num_generated < 0)
        assert not near.any() or logits[near].abs().amax() > 0
        return logits


def counted(monkeypatch) -> list[int]:
    """Count steps without logits."""
    empty, some = [], PackedLinear.some

    def noted(self, x, column, memory):
        if not column.numel():
            empty.append(len(x))
            memory.fill_(torch.nan)
        return some(self, x, column, memory)

    monkeypatch.setattr(PackedLinear, "some", noted)
    return empty


@pytest.mark.parametrize(
    ("chain", "num_empty"),
    [
        ((), 6),
        (CHAIN, 6),
        ((Reader(), *CHAIN), 4),
        ((lambda logits, rows: logits,), 0),
    ],
    ids=["none", "built in", "reader", "function"],
)
@pytest.mark.parametrize(
    "search",
    [
        pybeam.fixed_beam(3, n_best=3, max_length=9),
        pybeam.variable_beam(4, threshold=2.0, max_length=9),
    ],
)
def test_results_are_the_same(model, monkeypatch, search, chain, num_empty):
    search = dataclasses.replace(search, processors=chain)
    sources = [[4, 5, 6, 2], [7, 8, 2], [9, 2]]
    requests = [pybeam.Request(source, prefix=PREFIX) for source in sources]
    plan = LiveSources.plan
    with monkeypatch.context() as patch:
        patch.setattr(LiveSources, "plan", lambda self, step, reach: plan(self, step, None))
        expected = pybeam.Decoder(model, search, log_probs=True).decode(requests)
    empty = counted(monkeypatch)
    assert pybeam.Decoder(model, search, log_probs=True).decode(requests) == expected
    assert empty == [3] * num_empty


def test_a_row_that_chooses_gets_logits(model, monkeypatch):
    """Beside rows that do not."""
    search = pybeam.fixed_beam(3, max_length=20)
    requests = [pybeam.Request([4, 5, 6, 2]), pybeam.Request([7, 8, 2], prefix=PREFIX)]
    alone = [pybeam.Decoder(model, search).decode([one])[0] for one in requests]
    empty = counted(monkeypatch)
    assert [r.hypotheses for r in pybeam.Decoder(model, search).decode(requests)] == [
        r.hypotheses for r in alone
    ]
    assert not empty


def test_what_is_scored_gets_logits(model, monkeypatch):
    search = pybeam.fixed_beam(
        3, max_length=9, prefix=pybeam.limits.PrefixRule(is_scored=True, in_length=True)
    )
    empty = counted(monkeypatch)
    decoder = pybeam.Decoder(model, search)
    [result] = decoder.decode([pybeam.Request([4, 5, 2], prefix=PREFIX)])
    pybeam.Decoder(model, pybeam.greedy()).score([pybeam.Request([4, 2], prefix=[5])], [[6, 7]])
    assert result.hypotheses and len(empty) <= 1


def test_without_a_prefix_there_is_none_to_wait_for(model, monkeypatch):
    """Where a prefix would be scored, too."""
    search, rule = pybeam.fixed_beam(3, max_length=9), pybeam.limits.PrefixRule(True, True)
    expected = pybeam.Decoder(model, search).decode([[4, 5, 2]])
    empty = counted(monkeypatch)
    scored = dataclasses.replace(search, prefix=rule)
    assert pybeam.Decoder(model, scored).decode([[4, 5, 2]]) == expected
    assert not empty
