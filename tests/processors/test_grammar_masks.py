"""When masks of grammars are made: while the model computes, or within the call."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.models.function import FunctionModel
from pybeam.processors import grammars

pytest.importorskip("llguidance")

BOS, EOS = 0, 1
TEXTS = [None, None, "a", "b", "ab", "ba", "c", "bab", "bc"]


class Texts:
    def vocab(self):
        return TEXTS


TINY = Texts()


@pytest.fixture(params=[True, False])
def beside(request, monkeypatch):
    """Whether masks are made while the model computes."""
    monkeypatch.setattr(grammars, "works_beside", lambda device: request.param)
    return request.param


def test_masks_are_begun_before_the_model_computes(beside, monkeypatch):
    """All of them are, and none is made twice."""
    order = []
    beside_model, now = grammars.masks_beside, grammars.masks_now

    def logits(prefixes, lengths, sources):
        order.append("model")
        return torch.zeros(len(prefixes), len(TEXTS))

    monkeypatch.setattr(
        grammars, "masks_beside", lambda *a: order.append("begun") or beside_model(*a)
    )
    monkeypatch.setattr(grammars, "masks_now", lambda *a: order.append("now") or now(*a))
    model = FunctionModel(logits, len(TEXTS), BOS, EOS)
    search = pybeam.fixed_beam(3, processors=[processors.grammar('start: "ab" "c"', TINY)])
    [result] = pybeam.Decoder(model, search, pybeam.Batch(1)).decode([[3]])
    assert result.steps > 2
    assert order == (["begun", "model"] if beside else ["model", "now"]) * result.steps


def test_a_step_that_fails_is_done_again_with_masks_that_were_begun(beside):
    """The model fails for one source, whose step the others do again without it."""
    failed = []

    def logits(prefixes, lengths, sources):
        if bool(((sources == 1) & (lengths == 3)).any()):
            failed.append(len(prefixes))
            raise RuntimeError("broken")
        return torch.zeros(len(prefixes), len(TEXTS))

    model = FunctionModel(logits, len(TEXTS), BOS, EOS)
    search = pybeam.fixed_beam(
        3, n_best=3, max_length=8, processors=[processors.grammar('start: "a"+ "bc"', TINY)]
    )
    found = pybeam.Decoder(model, search).decode([[3], [4], [5]], on_error="return")
    assert len(failed) > 1 and "broken" in str(found[1].error)
    [alone] = pybeam.Decoder(model, search).decode([[3]])
    assert found[0].hypotheses == found[2].hypotheses == alone.hypotheses
