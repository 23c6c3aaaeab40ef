"""Work that is started as its sources come, and whose outcomes come in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pybeam.serving.together import in_order, merged, together


def outcomes(sources, start, window=4):
    async def main():
        found = []
        try:
            async for one in in_order(sources() if callable(sources) else sources, start, window):
                found.append(one)
        except Exception as error:
            found.append(error)
        return found

    return asyncio.run(main())


async def later(place: int, source: int) -> tuple[int, int]:
    # the first ones take longest
    await asyncio.sleep(0.002 * (5 - place % 5))
    return place, source


@pytest.mark.parametrize("number", [0, 1, 3])
def test_all_together(number):
    async def main():
        return await together([later(place, 7) for place in range(number)])

    assert asyncio.run(main()) == [(place, 7) for place in range(number)]


def test_the_first_error_cancels_the_rest():
    ended = []

    async def work(place):
        try:
            await asyncio.sleep(0.001 if place == 1 else 5)
            raise ValueError("wrong")
        finally:
            ended.append(place)

    async def main():
        with pytest.raises(ValueError, match="wrong"):
            await together([work(place) for place in range(3)])
        assert sorted(ended) == [0, 1, 2]

    asyncio.run(asyncio.wait_for(main(), 3))


@pytest.mark.parametrize("window", [1, 3, 100])
def test_outcomes_are_in_order(window):
    assert outcomes(range(10, 22), later, window) == [*enumerate(range(10, 22))]


def test_no_sources_have_no_outcomes():
    assert outcomes([], later) == []


def test_so_many_are_open_at_a_time():
    num_open, most = 0, 0

    async def start(place, source):
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        await asyncio.sleep(0.001)
        num_open -= 1

    outcomes(range(20), start, window=3)
    assert most == 3


def test_outcomes_do_not_wait_for_sources_that_are_slow():
    told = []

    async def main():
        has_come = asyncio.Event()

        async def sources() -> AsyncIterator[int]:
            yield 7
            await has_come.wait()
            yield 8

        async for one in in_order(sources(), later, 4):
            told.append(one)
            has_come.set()

    asyncio.run(asyncio.wait_for(main(), 5))
    assert told == [(0, 7), (1, 8)]


def test_an_error_of_the_sources_comes_behind_what_came_before():
    async def sources():
        yield 1
        yield 2
        raise OSError("gone")

    *found, error = outcomes(sources, later)
    assert found == [(0, 1), (1, 2)] and str(error) == "gone"


def test_an_error_of_the_work_comes_in_its_place_and_ends_the_rest():
    ended, have_begun = [], asyncio.Event()

    async def start(place, source):
        try:
            if place == 3:
                have_begun.set()
            await (have_begun.wait() if place < 2 else asyncio.sleep(5))
            if place == 1:
                raise ValueError("wrong")
            return place
        finally:
            ended.append(place)

    first, error = outcomes(range(4), start)
    assert first == 0 and str(error) == "wrong"
    assert sorted(ended) == [0, 1, 2, 3]


def test_what_several_sources_yield_comes_as_it_is_there():
    async def main():
        has_come = asyncio.Event()

        async def slow():
            await has_come.wait()
            yield "slow"

        async def quick():
            yield "quick"
            has_come.set()

        return [one async for one in merged([slow(), quick()])]

    assert asyncio.run(asyncio.wait_for(main(), 5)) == ["quick", "slow"]


@pytest.mark.parametrize("fails", [False, True])
def test_sources_are_closed_together(fails):
    closed = []

    async def source(name):
        try:
            yield name
            if fails:
                raise OSError("gone")
            await asyncio.sleep(5)
            yield name
        finally:
            closed.append(name)

    async def main():
        coming, found = merged([source("a"), source("b")]), []
        try:
            async for one in coming:
                found.append(one)
                if len(found) == 2 and not fails:
                    break
        except OSError as error:
            assert fails and str(error) == "gone"
        await coming.aclose()
        return found

    found = asyncio.run(asyncio.wait_for(main(), 5))
    assert fails or sorted(found) == ["a", "b"]
    assert sorted(closed) == ["a", "b"]
