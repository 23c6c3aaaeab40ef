"""The tests of a run with `--device cuda`: those that take a device, the ones that all need first."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pybeam.models import loading

# by words in names of files; a machine on which kernels fail shows at once
ORDER = ("select", "attention", "tree", "rows", "backtrace", "device_loop", "session")


def takes_device(item: pytest.Item) -> bool:
    return "device" in getattr(item, "fixturenames", ())


def needs_no_device(path: Path) -> bool:
    """Whether this is a file of tests in which nothing takes a device. It need not be imported."""
    if path.suffix != ".py":
        return False
    text = path.read_text("utf-8")
    # most files do not have the word
    return "device" not in text or not any(
        isinstance(node, ast.arg) and node.arg == "device" for node in ast.walk(ast.parse(text))
    )


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on the CPU anyway, and order the rest."""
    others = [item for item in items if not takes_device(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = sorted(filter(takes_device, items), key=_place)


def _place(item: pytest.Item) -> int:
    return next((i for i, word in enumerate(ORDER) if word in item.path.stem), len(ORDER))


class Deadline:
    """Skips the tests that would begin after so many minutes; None: never."""

    def __init__(self, minutes: float | None) -> None:
        self._minutes, self._start = minutes, time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._minutes is not None and time.monotonic() - self._start > 60 * self._minutes:
            pytest.skip(f"{self._minutes:g} minutes are over (--minutes)")


@contextmanager
def explicit_devices(item: pytest.Item) -> Iterator[None]:
    """Within this context, `load_model` refuses "auto" in a test that takes a device.

    "auto" is CUDA where there is a GPU, so such a test would mix devices there, and pass here.
    """
    if not takes_device(item):
        yield
        return
    device_of = loading.working_device

    def explicit(device):
        assert device != "auto", "a test that takes `device` must give it to `load_model`"
        return device_of(device)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(loading, "working_device", explicit)
        yield


@contextmanager
def as_in_production() -> Iterator[None]:
    """Within this context algorithms need not be deterministic, and torch fills no new memory (`poison`).

    Steps are captured as users capture them. Memory that is given back is poisoned as ever.
    """
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
