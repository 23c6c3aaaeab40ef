"""Models that wait for a test, and a clock that only a test moves."""

from __future__ import annotations

import threading

from pybeam.models import FunctionModel

WAIT_SECONDS = 20


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class GatedModel(FunctionModel):
    """The same model, whose steps wait while the gate is shut.

    Attributes:
        gate: set while it is open, as it is at first.
        calls: what each step has seen: the ids of its sources.
    """

    def __init__(self, model: FunctionModel) -> None:
        super().__init__(self._call, model.vocab_size, model.start_id, model.eos_id)
        self._inner = model.fn
        self.gate = threading.Event()
        self.gate.set()
        self._arrived = threading.Event()
        self.calls: list[set[int]] = []

    def _call(self, prefixes, lengths, source_ids):
        self.calls.append(set(source_ids.tolist()))
        self._arrived.set()
        assert self.gate.wait(WAIT_SECONDS), "nobody has opened the gate"
        return self._inner(prefixes, lengths, source_ids)

    def shut(self) -> None:
        """Let the next step wait."""
        self._arrived.clear()
        self.gate.clear()

    def until_a_step_waits(self) -> None:
        """Return when a step that began after `shut` waits at the gate."""
        assert self._arrived.wait(WAIT_SECONDS), "no step has begun"

    def open(self) -> None:
        self.gate.set()
