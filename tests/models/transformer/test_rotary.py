"""Tables of rotary embeddings, which the engines of a model share."""

from __future__ import annotations

import threading

import torch

from pybeam.models.transformer.frequencies import Frequencies
from pybeam.models.transformer.rotary import RotaryTable


def table() -> RotaryTable:
    frequencies = Frequencies(torch.tensor([1.0, 0.1]))
    return RotaryTable(frequencies, 1000, torch.device("cpu"))


def test_another_thread_may_compute_more_while_one_waits():
    shared, expected = table(), table()
    expected.fill(400)

    class Lock:
        """Lets another in before the one that waits."""

        def __enter__(self) -> None:
            shared._lock = threading.Lock()
            shared.fill(400)

        def __exit__(self, *_) -> None:
            pass

    shared._lock = Lock()
    shared.fill(100)
    assert shared._parts[0].num_known == 800
    assert torch.equal(shared.cos[:800], expected.cos[:800])
