"""Run the device's program on a CPU, and guard what it may not do."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from pybeam.backends import reference
from pybeam.backends import torch_beams as beams
from pybeam.backends import torch_drafts as drafts
from pybeam.backends.tensor_beams import TensorBeams, TensorDrafts
from pybeam.backends.waiting import NoWaiting
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from pybeam.models.transformer.model import TransformerSession

CPU = torch.device("cpu")


def torch_beams() -> SimpleNamespace:
    """The native operators, except that beams are plain torch, as on a GPU."""
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    functions = reference.BEAM_FUNCTIONS._replace(
        open=partial(beams.beam_open, native.tree_append),
        select=native.select,
        commit=partial(beams.beam_commit, native.tree_append),
        close=partial(beams.beam_close, native.tree_release),
        backtrace=native.backtrace,
    )
    draft_functions = reference.DRAFT_FUNCTIONS._replace(
        open=partial(drafts.draft_open, native.tree_append)
    )
    program = dict(
        beam_program=partial(TensorBeams, functions),
        skips_forced_logits=False,
        draft_program=partial(TensorDrafts, functions, draft_functions),
    )
    return SimpleNamespace(**{**vars(native), **program})


def never_waiting_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where beams are opened or closed, or sources encoded or released, and the host waits."""

    def guarded(function):
        def call(*args):
            with NoWaiting(uploads=True):
                return function(*args)

        return call

    places = (Workspace, "open"), (Workspace, "close"), (TransformerSession, "encode")
    for owner, name in places:
        monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))


REQUESTS = [[5 + i % 20, 7, 9] * (1 + i % 3) for i in range(12)]


def run(workspace: Workspace, schedule, requests=REQUESTS, **options):
    stats = Stats()
    running = Engine(workspace, schedule, stats, StreamOptions(**options))
    return sorted(Stream(running.run(requests), CPU), key=lambda result: result.index), stats


def assert_alike(results, expected) -> None:
    """Check equality up to the last bits of scores: products of other sizes round differently."""
    assert not any(result.error for result in results)
    for ours, theirs in zip(results, expected, strict=True):
        assert [h.tokens for h in ours.hypotheses] == [h.tokens for h in theirs.hypotheses]
        scores = [h.score for h in theirs.hypotheses]
        assert [h.score for h in ours.hypotheses] == pytest.approx(scores, abs=1e-4)
        assert (ours.steps, ours.expansions) == (theirs.steps, theirs.expansions)
