"""Work that ends with its client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybeam.server.errors import ClientGone
from pybeam.server.sse import Presence, unless_gone


class Client:
    """The messages of a client, which stays until it leaves."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self._gone = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()


class ClientOfOurs(Client):
    """One whose connection tells when it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self._presence = Presence()
        self.scope["state"] = {"presence": self._presence}

    def leave(self) -> None:
        self._presence.end()


both = pytest.mark.parametrize("kind", [Client, ClientOfOurs])


class Work:
    """Work that takes long, and knows whether it was cancelled."""

    has_begun = is_cancelled = False

    async def __call__(self) -> None:
        self.has_begun = True
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


async def begun(work: Work) -> None:
    while not work.has_begun:
        await asyncio.sleep(0)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


@both
def test_it_gives_the_result_and_the_error_of_the_work(kind):
    async def test():
        http: Any = kind()
        before = asyncio.all_tasks()

        async def fails() -> None:
            raise OSError("no")

        assert await unless_gone(http, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(OSError, match="no"):
            await unless_gone(http, fails())
        # nobody watches the client any more
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        # who goes then does no harm
        http.leave()
        await asyncio.sleep(0.01)

    run(test)


@both
def test_work_is_cancelled_when_the_client_goes(kind):
    async def test():
        http: Any = kind()
        work = Work()
        task = asyncio.ensure_future(unless_gone(http, work()))
        await begun(work)
        http.leave()
        with pytest.raises(ClientGone):
            await task
        assert work.is_cancelled
        # it had been cancelled by itself alone
        assert task.cancelling() == 0

    run(test)


@both
@pytest.mark.parametrize("goes", [False, True])
def test_others_may_cancel_it(goes, kind):
    async def test():
        http: Any = kind()
        work = Work()
        task = asyncio.ensure_future(unless_gone(http, work()))
        await begun(work)
        task.cancel()
        if goes:
            http.leave()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.is_cancelled

    run(test)


def test_work_does_not_begin_for_a_client_that_has_gone():
    async def test():
        http: Any = ClientOfOurs()
        http.leave()
        work = Work()
        with pytest.raises(ClientGone):
            await unless_gone(http, work())
        assert not work.has_begun or work.is_cancelled

    run(test)
