"""Beams in Triton against the native operators: every array bit for bit, over whole random searches."""

from __future__ import annotations

import pytest

from support.random_searches import ALGORITHMS, Searches

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.fixture(autouse=True)
def on_a_cpu(device):
    if device.type == "cuda":
        pytest.skip("native operators run on a CPU")


def search(name: str, seed: int, num_steps: int) -> None:
    searches = Searches(ALGORITHMS[name], seed, backend="triton")
    for _ in range(num_steps):
        searches.open()
        for act in (searches.step, searches.close):
            act()
            searches.check()


def test_the_best_of_beams_that_hold():
    search("optimal, held, GNMT", seed=0, num_steps=4)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_the_native_operators(name, seed):
    search(name, seed, num_steps=8)
