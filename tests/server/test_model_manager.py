"""Models are loaded, swapped and unloaded while others are asked, with an administrator's key."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref

import pytest

from pybeam.server import model_manager
from pybeam.server.audit import AuditLog
from pybeam.server.auth import Keys
from pybeam.server.calls import Calls
from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits
from support.administered import (
    LIST,
    LOAD,
    MIB,
    SWAP,
    UNLOAD,
    Folders,
    ask,
    listed,
    requests,
    until,
    width_of,
)
from support.example_lines import LINES
from support.paths import MODEL
from support.server_app import run

FREE = model_manager._free


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer user"}])
@pytest.mark.parametrize("has_keys", [True, False])
def test_nobody_else_is_an_administrator(tmp_path, headers, has_keys):
    """Not even where the server is open to all, and before the body is read."""
    (tmp_path / "keys.toml").write_text(table_of("user", "user", KeyLimits()))
    keys = Keys(path=str(tmp_path / "keys.toml")) if has_keys else Keys()
    expected = 401 if has_keys and not headers else 403

    async def test(http):
        for path in (LOAD, SWAP, UNLOAD):
            found = await http.post(path, content=b"no json", headers=headers)
            assert found.status_code == expected, path
        assert (await http.get(LIST, headers=headers)).status_code == expected
        assert (await http.get("/admin/other", headers=headers)).status_code == expected

    run(test, keys=keys)


def test_a_model_comes_is_swapped_and_goes(administered):
    async def test(http):
        assert (await listed(http))["first"]["state"] == "ready"
        found = await ask(http, LOAD, name="w2")
        assert (found["state"], found["bytes"], found["error"]) == ("ready", MIB, None)
        assert found["path"].endswith("/models/w2") and await width_of(http, "w2") == 2
        body = {"text": LINES[0], "model": "w2"}
        before = await ask(http, "/v1/translations", **body)
        assert await ask(http, LOAD, name="w2") | {"idle_seconds": 0} == found | {"idle_seconds": 0}
        await ask(http, LOAD, 409, name="w2", path="w3")
        assert (await ask(http, SWAP, name="w2", path="w3"))["path"].endswith("/models/w3")
        assert await width_of(http, "w2") == 3
        after = await ask(http, "/v1/translations", **body)
        assert [one["model"] for one in (before, after)] == ["w2", "w2"]
        assert (await http.get("/ready")).json()["models"] == {"first": "ready", "w2": "ready"}
        await until(lambda: _are_ready(http, 2))
        metrics = (await http.get("/metrics")).text
        assert 'pybeam:model_weight_bytes{model_name="w2"} 1.048576e+06' in metrics
        assert 'pybeam:model_state{model_name="w2",state="ready"} 1.0' in metrics
        for _ in range(2):
            assert (await ask(http, UNLOAD, name="w2"))["state"] == "unloaded"
        await ask(http, "/v1/translations", 404, **body)
        await ask(http, SWAP, 404, name="w2")
        assert "w2" not in await listed(http)
        found = await ask(http, LOAD, name="w2")
        assert found["path"].endswith("/w2") and await width_of(http, "w2") == 2
        assert (await http.get(LIST)).json()["available"] == ["w1", "w2", "w3"]

    administered(test)


def test_the_audit_log_says_who_loaded_what(administered, tmp_path):
    path = tmp_path / "audit.jsonl"

    async def test(http):
        await ask(http, LOAD, name="w1")
        await ask(http, UNLOAD, name="w1")
        await ask(http, LOAD, 403, name="w1", path="..")

    with contextlib.closing(AuditLog(str(path))) as audit:
        administered(test, audit=audit)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = [[one[field] for field in ("key", "path", "model", "status")] for one in lines]
    whole = [(LOAD, 200), (UNLOAD, 200), (LOAD, 403)]
    assert said == [["boss", url, "w1", status] for url, status in whole]


def test_loads_of_one_name_are_one_and_go_on_without_their_client(administered):
    loader = Folders()

    async def test(http):
        loader.may_go_on.clear()
        gone = asyncio.ensure_future(ask(http, LOAD, name="w1"))
        await until(lambda: _loading(http, "w1", "reading"))
        gone.cancel()
        others = [asyncio.ensure_future(ask(http, LOAD, name="w1")) for _ in range(3)]
        at_once = await ask(http, LOAD, 202, name="w1", wait=False)
        assert (at_once["state"], at_once["loading"]["bytes"]) == ("loading", MIB)
        behind = await ask(http, LOAD, 202, name="w2", wait=False)
        assert behind["loading"]["phase"] == "waiting"
        await ask(http, UNLOAD, 409, name="w1")
        assert (await http.get("/ready")).status_code == 200
        assert "w1" not in (await http.get("/v1/models")).text
        loader.may_go_on.set()
        assert {one["state"] for one in await asyncio.gather(*others)} == {"ready"}
        await ask(http, LOAD, name="w2")
        assert loader.loaded == ["w1", "w2"]

    administered(test, loader)


def test_a_thread_that_reads_is_known_when_nobody_waits_for_it(administered):
    loader = Folders()

    async def test(http):
        manager = http.app.state.calls.manager
        loader.may_go_on.clear()
        managed = manager.load("w2")
        await until(lambda: _loading(http, "w2", "reading"))
        managed.loading.outcome.cancel()
        await asyncio.gather(managed.loading.outcome, return_exceptions=True)
        assert manager.is_loading
        loader.may_go_on.set()
        while manager.is_loading:
            await asyncio.sleep(0.01)

    administered(test, loader)


async def _loading(http, name, phase):
    found = (await listed(http)).get(name)
    return found and found["loading"] and found["loading"]["phase"] == phase


def test_a_load_that_fails_leaves_all_as_before(administered):
    async def test(http):
        for path in ("bad", "bad/none"):
            status = 422 if path == "bad" else 404
            found = await ask(http, LOAD, status, name="new", path=path)
            assert "width" in found["error"]["message"] or status == 404
        state = await listed(http)
        assert (state["new"]["state"], state["memory"]["used"]) == ("failed", MIB)
        assert "width" in state["new"]["error"]
        await ask(http, SWAP, 404, name="new")
        assert "width" in (await ask(http, SWAP, 422, name="first", path="bad"))["error"]["message"]
        state = await listed(http)
        assert (state["first"]["state"], "width" in state["first"]["error"]) == ("ready", True)
        assert (await ask(http, "/v1/translations", text=LINES[0]))["model"] == "first"
        assert (await ask(http, LOAD, name="new", path="w1"))["error"] is None
        found = await ask(http, LOAD, 500, name="huge", path="w1")
        assert "MemoryError while loading" in found["error"]["message"]
        await ask(http, LOAD, 422, name="other", path="bad")
        assert (await ask(http, UNLOAD, name="other"))["state"] == "unloaded"
        assert "other" not in await listed(http)

    administered(test)


def test_a_request_keeps_its_model_while_another_takes_its_name(administered, monkeypatch):
    """Ids that one tokenizer made never meet another model, and no request is lost."""
    encode, held = Calls.encode, asyncio.Event()

    async def wait(*args):
        await held.wait()
        return await encode(*args)

    async def test(http):
        body = {"text": LINES[2], "model": "first", "n_best": 1}
        own = await ask(http, "/v1/translations", **body)
        monkeypatch.setattr(Calls, "encode", wait)
        before = asyncio.ensure_future(ask(http, "/v1/translations", **body))
        await until(lambda: requests(http, "first", 1))
        found = await ask(http, SWAP, name="first", path="w1")
        assert (found["state"], found["requests"]) == ("ready", 0)
        states = [one["state"] for one in (await http.get(LIST)).json()["models"]]
        assert states == ["ready", "unloading"]
        after = asyncio.ensure_future(ask(http, "/v1/translations", **body))
        held.set()
        score, other = [(await one)["translations"][0]["score"] for one in (before, after)]
        assert score == own["translations"][0]["score"] != other
        await until(lambda: _are_ready(http, 1))

    administered(test)


async def _are_ready(http, num):
    return [one["state"] for one in (await http.get(LIST)).json()["models"]] == ["ready"] * num


def test_requests_of_a_model_that_must_go_get_503(administered, monkeypatch):
    encode, held = Calls.encode, asyncio.Event()

    async def wait(*args):
        await held.wait()
        return await encode(*args)

    async def test(http):
        monkeypatch.setattr(Calls, "encode", wait)
        asked = asyncio.ensure_future(ask(http, "/v1/translations", 503, text=LINES[0]))
        await until(lambda: requests(http, "first", 1))
        found = await ask(http, UNLOAD, 202, name="first", wait=False)
        assert (found["state"], found["requests"]) == ("unloading", 1)
        await ask(http, UNLOAD, name="first", timeout=0)
        held.set()
        assert "has been unloaded" in (await asked)["error"]["message"]
        assert (await http.get("/ready")).json() == {"status": "ready", "models": {}}
        found = await ask(http, "/v1/translations", 404, text=LINES[0], model="first")
        assert "no model is loaded" in found["error"]["message"]

    administered(test)


def test_folders_elsewhere_are_not_loaded(administered, folder, tmp_path):
    (tmp_path / "secret").mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")

    async def test(http):
        for path in ("../secret", str(tmp_path / "secret"), "link", "/", ".."):
            found = await ask(http, LOAD, 403, name="new", path=path)
            assert "--model-folder" in found["error"]["message"]
        await ask(http, LOAD, 400, name="new", path="a\0b")
        for name in ("a b", "", "x" * 129, "a\nb"):
            await ask(http, LOAD, 400, name=name, path="w1")
        await ask(http, LOAD, name="whole", path=str(folder / "w1"))
        found = await ask(http, SWAP, 422, name="first")
        assert f"{MODEL}/width" in found["error"]["message"], "it reads its own folder again"

    administered(test)

    async def closed(http):
        found = await ask(http, LOAD, 403, name="w1")
        assert "start it with `--model-folder`" in found["error"]["message"]
        found = await ask(http, SWAP, 403, name="first")
        assert "start it with `--model-folder`" in found["error"]["message"]

    administered(closed, model_folders=())


@pytest.mark.slow
def test_what_leaves_gives_its_memory_back(administered, monkeypatch):
    async def test(http):
        monkeypatch.setattr(model_manager, "_free", FREE)
        await ask(http, LOAD, name="w1")
        gc.collect()
        gc.freeze()
        model = http.app.state.calls.models.pick("w1")
        gone = [weakref.ref(model), weakref.ref(model.decoder)]
        del model
        await ask(http, "/v1/translations", text=LINES[0], model="w1")
        await ask(http, UNLOAD, name="w1")
        assert [one() for one in gone] == [None, None]

    try:
        administered(test)
    finally:
        gc.unfreeze()
