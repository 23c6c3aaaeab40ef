"""Models fit into a budget of memory, and those that are idle may make room for others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pybeam.server.calls import Calls
from pybeam.server.model_manager import ModelManager
from support.administered import LOAD, MIB, SWAP, UNLOAD, Folders, ask, listed, requests, until
from support.example_lines import LINES


def test_a_model_that_does_not_fit_is_not_read(administered):
    loader = Folders()

    async def test(http):
        await ask(http, LOAD, name="w1")
        found = await ask(http, LOAD, 507, name="w2")
        for part in ("need 1 MiB", "--memory-budget 2.5 MiB", "512 KiB free"):
            assert part in found["error"]["message"]
        # both have to be there for a while
        await ask(http, SWAP, 507, name="w1", path="w3")
        assert loader.loaded == ["w1"] and (await listed(http))["memory"] == {
            **{"budget": 5 * MIB // 2, "used": 2 * MIB, "free": MIB // 2}
        }
        await ask(http, UNLOAD, name="first")
        await ask(http, LOAD, name="w2")
        assert "pybeam:memory_budget_bytes 2.62144e+06" in (await http.get("/metrics")).text

    administered(test, loader, memory_budget=5 * MIB // 2)


def test_what_is_idle_makes_room_if_it_may(administered, monkeypatch):
    encode, held = Calls.encode, asyncio.Event()

    async def wait(*args):
        await held.wait()
        return await encode(*args)

    async def test(http):
        await ask(http, LOAD, name="w1")
        await ask(http, LOAD, name="w2")
        monkeypatch.setattr(Calls, "encode", wait)
        body = {"text": LINES[0], "model": "first"}
        busy = asyncio.ensure_future(ask(http, "/v1/translations", **body))
        await until(lambda: requests(http, "first", 1))
        await ask(http, LOAD, name="w3")
        state = await listed(http)
        assert {"first", "w2", "w3"} == state.keys() - {"memory"}, "w1 was idle for longest"
        held.set()
        assert (await busy)["model"] == "first"

    administered(test, memory_budget=3 * MIB, unload_idle=True)


@pytest.mark.parametrize("together", [True, False], ids=["for one load", "for two loads"])
def test_models_that_make_room_leave_at_once(administered, monkeypatch, together):
    """So none gets a request or is swapped meanwhile, and another load is not refused for want of room."""
    remove, may_leave = ModelManager._remove, threading.Event()

    def wait(manager, model):
        assert may_leave.wait(10)
        remove(manager, model)

    class Sized(Folders):
        def num_bytes(self, directory):
            return 2 * MIB if together and directory.endswith("w3") else MIB

    async def test(http):
        await ask(http, LOAD, name="w1")
        monkeypatch.setattr(ModelManager, "_remove", wait)
        coming = {"w3"} if together else {"w2", "w3"}
        loads = [asyncio.ensure_future(ask(http, LOAD, name=name)) for name in coming]
        manager, ready = http.app.state.calls.manager, dict.fromkeys(coming, "ready")
        leaving = {"first": "unloading", "w1": "unloading"}
        try:
            await until(lambda: _states(manager, leaving | dict.fromkeys(coming, "loading")))
        finally:
            may_leave.set()
            await asyncio.gather(*loads)
        await until(lambda: _states(manager, ready))

    administered(test, Sized(), memory_budget=2 * MIB, unload_idle=True)


async def _states(manager, expected):
    return manager.states == expected
