"""Event loops that other threads wake, once for all that has come."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future
from typing import Any
from weakref import ref

import pytest

from pybeam.serving.bell import Bell, awaited, own_bell


class CountedLoop:
    """A loop that keeps what it is to call, and counts."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.problems: list[dict[str, Any]] = []

    def call_soon_threadsafe(self, function: Any) -> None:
        self.given.append(function)

    def call_exception_handler(self, problem: dict[str, Any]) -> None:
        self.problems.append(problem)


def test_one_ring_is_for_all_that_came_before_it_was_heard():
    loop: Any = CountedLoop()
    bell, heard = Bell(loop), list[int]()
    for i in range(3):
        bell.call(lambda i=i: heard.append(i))
    assert len(loop.given) == 1 and not heard
    # what comes while the loop listens is heard, too
    bell.call(lambda: bell.call(lambda: heard.append(4)))
    loop.given[0]()
    assert heard == [0, 1, 2, 4]
    bell.call(lambda: heard.append(5))
    loop.given[-1]()
    assert heard[-1] == 5


def test_a_call_that_raises_keeps_no_other():
    loop: Any = CountedLoop()
    bell, heard = Bell(loop), list[int]()
    bell.call(lambda: heard.append(1 // 0))
    bell.call(lambda: heard.append(2))
    loop.given[0]()
    assert heard == [2]
    [problem] = loop.problems
    assert isinstance(problem["exception"], ZeroDivisionError)


def test_threads_that_ring_at_the_same_time_are_all_heard():
    num_threads, num_calls = 4, 2000

    async def main() -> list[int]:
        bell, heard, is_over = own_bell(), list[int](), asyncio.Event()

        def hear(i: int) -> None:
            heard.append(i)
            if len(heard) == num_threads * num_calls:
                is_over.set()

        def ring(first: int) -> None:
            for i in range(first, first + num_calls):
                bell.call(lambda i=i: hear(i))

        threads = [threading.Thread(target=ring, args=(i * num_calls,)) for i in range(num_threads)]
        for one in threads:
            one.start()
        await asyncio.wait_for(is_over.wait(), 30)
        for one in threads:
            one.join()
        return heard

    heard = asyncio.run(main())
    assert sorted(heard) == list(range(num_threads * num_calls))
    # each thread's calls come in its order
    for i in range(num_threads):
        own = [one for one in heard if one // num_calls == i]
        assert own == sorted(own)


def test_a_task_awaits_a_future_of_another_thread():
    async def main() -> None:
        future: Future[int] = Future()
        threading.Thread(target=future.set_result, args=(3,)).start()
        assert await awaited(future) == 3
        assert await awaited(future) == 3
        failed: Future[int] = Future()
        failed.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await awaited(failed)

    asyncio.run(main())


def test_a_task_hears_of_an_error_that_no_task_can_be_given():
    async def main() -> None:
        stopped: Future[int] = Future()
        done: Future[int] = Future()
        coming = [awaited(stopped), awaited(done)]
        error = StopIteration("none left")
        stopped.set_exception(error)
        done.set_result(3)
        assert await asyncio.wait_for(coming[1], 30) == 3
        with pytest.raises(RuntimeError, match="StopIteration: none left") as found:
            await asyncio.wait_for(coming[0], 30)
        assert found.value.__cause__ is error

    asyncio.run(main())


def test_cancelling_goes_both_ways():
    async def main() -> None:
        future: Future[int] = Future()
        coming = awaited(future)
        coming.cancel()
        await asyncio.sleep(0)
        assert future.cancelled()
        other: Future[int] = Future()
        coming = awaited(other)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await coming
        # one that has been cancelled takes no result
        late: Future[int] = Future()
        late.set_running_or_notify_cancel()
        coming = awaited(late)
        coming.cancel()
        late.set_result(1)
        await asyncio.sleep(0)
        assert coming.cancelled()

    asyncio.run(main())


def test_a_loop_that_is_closed_is_not_woken():
    async def main() -> Bell:
        return own_bell()

    asyncio.run(main()).call(lambda: None)


@pytest.mark.slow
def test_a_loop_that_nobody_has_is_freed():
    async def main() -> ref[asyncio.AbstractEventLoop]:
        future: Future[int] = Future()
        coming = awaited(future)
        future.set_result(1)
        assert await coming == 1
        return ref(asyncio.get_running_loop())

    found = asyncio.run(main())
    gc.collect()
    assert found() is None


@pytest.mark.slow
def test_a_bell_whose_loop_is_gone_is_not_heard():
    loop: Any = CountedLoop()
    bell = Bell(loop)
    del loop
    gc.collect()
    bell.call(lambda: None)
