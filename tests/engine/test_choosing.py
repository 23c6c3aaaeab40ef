"""Beams choose among logits that nobody keeps, a few rows at a time: the bits of `step` and `select`."""

from functools import cache

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.engine import Engine
from support.laws import essence
from support.paths import MODEL

pytestmark = pytest.mark.skipif(
    "native" not in backends.available(), reason="other backends keep logits"
)
# several beams are a tile; one beam is more than a tile; entries that have ended have no row; rows are beams
ALGORITHMS = dict(
    greedy=pybeam.greedy(max_length=4),
    fixed=pybeam.fixed_beam(5, max_length=4),
    wide=pybeam.fixed_beam(40, max_length=2),
    held=pybeam.variable_beam(5, max_length=4),
    guesses=pybeam.jacobi(max_length=5),
)


@cache
def model():
    """A model with so much work in a step that threads share it."""
    return pybeam.load_model(str(MODEL))


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nobody_needs_the_logits(name, num_threads, monkeypatch):
    sources = [
        [3 + (7 * i + 5 * j) % 900 for j in range(1 + i % 4)] for i in range(17 * num_threads)
    ]
    decoder = pybeam.Decoder(model(), ALGORITHMS[name], pybeam.Batch(64))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        chosen = decoder.decode(sources)
        monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
        assert essence(chosen) == essence(decoder.decode(sources))
    finally:
        torch.set_num_threads(before)
