"""Memory that there is not: requests fail with the allocator's error, and the decoder lives."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

import pybeam
from pybeam.engine.room import Room
from support.laws import essence
from support.paths import MODEL, ROOT
from support.search_models import random_model
from support.tiny_rnn import save_tiny_rnn

ALLOCATING = {
    *("arange", "cat", "clone", "contiguous", "empty", "full", "zeros"),
    *("new_empty", "new_full", "new_zeros"),
}
REFUSED = "can't allocate memory: you tried to allocate more than there is"


class Scarcity(TorchFunctionMode):
    """Refuses the allocation with this number among those of growing arrays, and no other."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ALLOCATING:
            self.left -= 1
            if self.left == -1:
                raise RuntimeError(REFUSED)
        return func(*args, **(kwargs or {}))


@contextmanager
def scarce(monkeypatch: pytest.MonkeyPatch, number: int):
    """Whatever makes room for sources, tokens or pages may meet the scarcity."""
    scarcity = Scarcity(number)

    def within(method):
        def called(*args, **options):
            with scarcity:
                return method(*args, **options)

        return called

    with monkeypatch.context() as patch:
        for name in ("reserve", "claim"):
            patch.setattr(Room, name, within(getattr(Room, name)))
        yield scarcity


@pytest.fixture(
    scope="module", params=["function", "rnn", pytest.param("transformer", marks=pytest.mark.slow)]
)
def model(request: pytest.FixtureRequest, tmp_path_factory) -> pybeam.Model:
    if request.param == "function":
        return random_model(7, 12, eos_bonus=-2.0)
    if request.param == "transformer":
        return pybeam.load_model(MODEL)
    directory = tmp_path_factory.mktemp("rnn")
    save_tiny_rnn(directory)
    return pybeam.load_model(directory)


# in `make test`: two of them
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("numbers", [(0, 21), pytest.param(None, marks=pytest.mark.slow)])
def test_an_allocation_that_fails_while_arrays_grow(model, numbers, monkeypatch):
    """Whichever it is: those that need it fail, the others get their results, and so does everybody later."""
    requests = [
        pybeam.Request([5, 6, 2][: 1 + i % 3], width=width, max_length=length, source_id=i)
        for i, (width, length) in enumerate([(2, 5), (3, 40), (2, 70), (9, 9), (4, 20)])
    ]
    search = pybeam.fixed_beam(2, max_length=5)
    expected = essence(pybeam.Decoder(model, search).decode(requests))
    num_failed = 0
    for number in itertools.count() if numbers is None else numbers:
        decoder = pybeam.Decoder(model, search, pybeam.Fifo(2, window=2))
        with scarce(monkeypatch, number) as scarcity:
            results = decoder.decode(requests, on_error="return")
        if scarcity.left >= 0:
            assert number > 10, "few arrays grow"
            break
        failed = [result for result in results if result.error is not None]
        assert all(str(result.error) == REFUSED for result in failed), (number, failed)
        num_failed += len(failed)
        others = [
            one for one, result in zip(essence(results), results, strict=True) if not result.error
        ]
        assert all(one in expected for one in others), number
        assert essence(decoder.decode(requests)) == expected, number
        [work] = decoder._idle
        assert len(work.slots.free) == work.slots.num - 1, number
    # those that wait are tried again, each alone; a step fails its sources
    assert num_failed or numbers is not None


PROGRAM = """
import resource, sys
import pybeam
from support.search_models import random_model
decoder = pybeam.Decoder(random_model(7, eos_bonus=-50.0), pybeam.fixed_beam(2, max_length=20))
expected = [r.hypotheses for r in decoder.decode([[1]] * 3)]
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20), resource.RLIM_INFINITY))
greedy = pybeam.Request([1], width=4096, n_best=4096, max_length=4096)
*good, bad = decoder.decode([[1]] * 3 + [greedy], on_error="return")
assert "memory" in str(bad.error), bad.error
assert [r.hypotheses for r in good] == expected
assert [r.hypotheses for r in decoder.decode([[1]] * 3)] == expected
print("it lives")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_a_limit_of_the_system():
    """As `ulimit -v` sets it."""
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(program, env=paths, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("it lives\n", "")
