"""Whole decodings whose beams are Triton's, as on a GPU: the results of the native backend, to the bit."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

import pybeam
from pybeam import backends
from pybeam.backends.tensor_beams import TensorBeams, TensorDrafts
from pybeam.engine.workspace import Workspace
from support.laws import ALGORITHMS, SOURCES, decoded, essence
from support.search_models import random_model

OWN = ("plans_as_it_reads", "tree_append", "skips_forced_logits")
SCHEDULES = {
    "batch": pybeam.Batch(3),
    "streaming": pybeam.Streaming(4, 0.5, max_wait=2),
    "fifo, budget": pybeam.Fifo(3, row_budget=9),
}


@pytest.fixture
def triton_beams(device) -> SimpleNamespace:
    """The native operators, except that beams are Triton's."""
    if device.type == "cuda":
        pytest.skip("native operators run on a CPU")
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    triton = backends.load("triton")
    own = {name: getattr(triton, name) for name in OWN}
    functions = triton.BEAM_FUNCTIONS._replace(select=native.select, backtrace=native.backtrace)
    own["beam_program"] = partial(TensorBeams, functions)
    own["draft_program"] = partial(TensorDrafts, functions, triton.DRAFT_FUNCTIONS)
    return SimpleNamespace(**{**vars(native), **own})


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["fixed", "variable", "optimal", "stochastic", "adaptive"])
def test_as_native(name, schedule, late, triton_beams):
    model, algorithm = random_model(7, 9, levels=3, eos_bonus=0.5), ALGORITHMS[name]
    schedule, sources = SCHEDULES[schedule], SOURCES[:5]
    requests = [pybeam.Request(s, prefix=[3] * (i % 2)) for i, s in enumerate(sources)]
    options = dict(requests=requests, log_probs=True, reads_late=late)
    expected = decoded(model, algorithm, schedule, "native", **options)
    workspace = Workspace(model, algorithm, triton_beams)
    results = decoded(model, algorithm, schedule, None, workspace=workspace, **options)
    assert essence(results) == essence(expected)
