"""Keys: who has none is refused before the body is read, and who has one gets what its table says."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import time

import httpx
import pytest
from click.testing import CliRunner

from pybeam.cli import main
from pybeam.cli import pybeam as commands
from pybeam.server.auth import Keys
from pybeam.server.errors import APIError
from pybeam.server.key_file import LIMITS, table_of
from pybeam.server.settings import KeyLimits
from pybeam.serving import QueueFull
from support.example_lines import LINES
from support.server_app import client, run, served
from support.server_process import running, wait_until

TEXT = {"text": LINES[0]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path):
    """Make the keys of these names and limits, in the file `keys.toml`; each is its name behind "key of"."""

    def make(**limits) -> Keys:
        tables = [
            table_of(name, f"key of {name}", KeyLimits(**one)) for name, one in limits.items()
        ]
        (tmp_path / "keys.toml").write_text("\n".join(tables))
        return Keys(path=str(tmp_path / "keys.toml"))

    return make


async def asked(http, name: str, path="/v1/translations", **body):
    return await http.post(path, json=TEXT | body, headers=bearer(f"key of {name}"))


def test_whoever_has_no_key_is_refused_before_the_body_is_read():
    async def test():
        async with client(keys=("good",)) as http:
            found = []

            async def receive():
                raise AssertionError("the body is read")

            async def send(message):
                found.append(message)

            scope = {
                **{"type": "http", "method": "POST", "path": "/v1/audio/transcriptions"},
                **{"headers": [(b"authorization", b"Bearer bad")], "query_string": b""},
            }
            await http.app(scope, receive, send)
            assert found[0]["status"] == 401
            assert json.loads(found[1]["body"])["error"]["code"] == "invalid_api_key"

    asyncio.run(test())


def test_every_path_but_pages_and_what_operators_ask_needs_a_key():
    hidden = {"/", "/page/page.js", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
    hidden |= {"/static-offline-docs/swagger-ui.css"}

    async def test(http):
        paths = {path.replace("{name}", "a") for path in http.app.openapi()["paths"]}
        open_paths = set()
        for path in paths | hidden | {"/nothing"}:
            statuses = {
                (await http.request(method, path)).status_code for method in ("GET", "POST")
            }
            open_paths |= set() if statuses == {401} else {path}
        # these look for the key in the body
        keyed = {"/translate", "/translate_file", "/detect", "/suggest"}
        assert open_paths == hidden | keyed | {
            *("/health", "/ready", "/metrics", "/version", "/languages", "/frontend/settings"),
            "/download_file/{key}",
        }
        assert len(paths) > len(open_paths - hidden) + 5

    run(test, keys=("good",))


def test_requests_beyond_a_limit_get_429_with_the_headers_of_openai(keys):
    async def test(http):
        first, second = [await asked(http, "a") for _ in range(2)]
        assert (first.status_code, second.status_code) == (200, 429)
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(second.headers["retry-after"]) <= 60
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert {first.headers["x-ratelimit-remaining-requests"]} == {"0"}
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        # another key, in LibreTranslate's form
        body = {"q": LINES[0], "source": "es", "target": "en", "api_key": "key of b"}
        answers = [await http.post("/translate", json=body) for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 429]
        assert "1 request in a day" in answers[1].json()["error"]
        assert answers[1].headers["x-ratelimit-limit-requests"] == "1"
        # whoever has no limits has no such headers
        free = await asked(http, "c")
        assert free.status_code == 200 and not [one for one in free.headers if "ratelimit" in one]

    run(test, keys=keys(a={"requests_per_minute": 1}, b={"requests_per_day": 1}, c={}))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("path", ["/v1/translations", "/v1/completions", "/v1/score", "stream"])
def test_tokens_are_those_of_sources_and_outputs(keys, path):
    """OpenAI's answers say how many there were."""
    bodies = {
        "/v1/translations": TEXT,
        "stream": TEXT | {"stream": True},
        "/v1/completions": {"prompt": LINES[0], "n": 2},
        "/v1/score": {"source": LINES[0], "target": "And so."},
    }

    async def test(http):
        body, place = bodies[path], "/v1/translations" if path == "stream" else path
        answer = await http.post(place, json=body, headers=bearer("key of a"))
        assert answer.status_code == 200, answer.text
        after = await http.get("/v1/models", headers=bearer("key of a"))
        used = 10000 - int(after.headers["x-ratelimit-remaining-tokens"])
        prompt = {"prompt": LINES[0], "n": body.get("n", 1)}
        usage = (await http.post("/v1/completions", json=prompt, headers=bearer("key of b"))).json()
        if path == "/v1/score":
            found = answer.json()["hypotheses"][0]
            assert used == usage["usage"]["prompt_tokens"] + 2 * len(found["tokens"]) + 1
        else:
            assert used == usage["usage"]["total_tokens"]

    run(test, keys=keys(a={"tokens_per_day": 10000}, b={}))


@pytest.mark.parametrize(
    ("path", "body", "num_taken"),
    [
        ("/v1/translations", {"text": LINES[:3]}, 2),
        ("/v1/translations", TEXT | {"stream": True}, 0),
        ("/v1/completions", {"prompt": LINES[:3], "stream": True}, 2),
        ("/v1/completions", {"prompt": LINES[:3], "stop": "x"}, 2),
        ("/translate", {"q": LINES[0], "source": "es", "target": "en"}, 0),
    ],
)
def test_what_the_service_refuses_costs_no_tokens(keys, path, body, num_taken):
    async def test(http):
        service, begun = http.app.state.calls.service, []
        submit = service._submit

        def refuse(*args):
            if len(begun) == num_taken:
                raise QueueFull("max_waiting", 1, 1, 1.0)
            begun.append(submit(*args))
            return begun[-1]

        service._submit = refuse
        answer = await http.post(path, json=body, headers=bearer("key of a"))
        assert answer.status_code == 429, answer.text
        assert answer.headers["x-ratelimit-remaining-tokens"] == "1000"
        assert all(one.future.cancelled() for one in begun)

    run(test, keys=keys(a={"tokens_per_day": 1000}))


def test_a_stream_that_is_left_has_used_what_was_certain(keys):
    async def test(http):
        is_begun, parts = asyncio.Event(), [json.dumps(TEXT | {"stream": True}).encode()]

        async def receive():
            if parts:
                return {"type": "http.request", "body": parts.pop()}
            await is_begun.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message.get("body"):
                is_begun.set()
                # nothing of the rest is read
                await asyncio.Event().wait()

        headers = [(b"authorization", b"Bearer key of a"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/translations", "headers": headers}
        await http.app(scope | {"query_string": b""}, receive, send)
        after = await http.get("/v1/models", headers=bearer("key of a"))
        used = 1000 - int(after.headers["x-ratelimit-remaining-tokens"])
        assert used > len(served().tokenizer().encode(LINES[0]))

    run(test, keys=keys(a={"tokens_per_day": 1000}))


def test_a_key_is_kept_as_its_hash_alone():
    keys = Keys(("a good key",))
    assert b"a good key" not in pickle.dumps(keys)
    keys.admit({"path": "/"}, b"a good key")
    for other in (b"a good ke", b"a good key2", b"", None):
        with pytest.raises(APIError, match="missing or wrong"):
            keys.admit({"path": "/"}, other)


@pytest.mark.slow
def test_a_key_has_a_priority_of_its_own(keys):
    async def test(http):
        found = {
            name: [(await asked(http, name, priority=one)).status_code for one in (-8, 0, 1, 3)]
            for name in "abc"
        }
        # below 0 it lets others go first, and 0 is no mistake
        assert found == {"a": [200, 200, 200, 400], "b": [200] * 4, "c": [200, 200, 400, 400]}

    limits = {"a": {}, "b": {"max_priority": 3}, "c": {"max_priority": -2}}
    run(test, keys=keys(**limits), max_priority=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has none"),
        ("a = ", "must be a TOML file"),
        ("a = 1", "must be a table"),
        ('["a b"]', "letters, digits"),
        ("[a]", "64 hexadecimal digits"),
        ('[a]\nsha256 = "00"', "64 hexadecimal digits"),
        (table_of("a", "b", KeyLimits()) + "tokens = 1", "'tokens' is no limit"),
        (table_of("a", "b", KeyLimits()) + "tokens-per-day = 0", "of at least 1, but is 0"),
        (table_of("a", "b", KeyLimits()) + "tokens-per-day = true", "but is True"),
        (table_of("a", "b", KeyLimits()) + "max-priority = 9", "from -8 to 8"),
        (table_of("a", "b", KeyLimits()) + "admin = 1", "must be true or false, but is 1"),
        (table_of("a", "b", KeyLimits()) + table_of("c", "b", KeyLimits()), "are the same"),
        (table_of("key-0", "b", KeyLimits()), "are the same"),
    ],
)
def test_a_file_that_is_wrong_is_refused_as_a_whole(tmp_path, text, message):
    path = tmp_path / "keys.toml"
    path.write_text(table_of("old", "old key", KeyLimits()))
    keys = Keys(("plain",), str(path))
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Keys(("plain",), str(path))
    with pytest.raises(ValueError, match=message):
        keys.reload()
    for key in (b"plain", b"old key"):
        keys.admit({"path": "/"}, key)


def test_what_a_request_uses_counts_though_keys_are_read_again_meanwhile(keys):
    found, scope, late = keys(a={"tokens_per_day": 9}), {"path": "/"}, {"path": "/"}
    found.admit(scope, b"key of a")
    keys(a={"tokens_per_day": 5})
    found.reload()
    scope["state"]["caller"].allowance.take("tokens", 5)
    with pytest.raises(APIError, match="5 tokens in a day"):
        found.admit(late, b"key of a")


def test_a_file_that_is_refused_changes_no_limits(keys, tmp_path):
    found = keys(a={"requests_per_day": 1})
    limits = KeyLimits(requests_per_day=9)
    (tmp_path / "keys.toml").write_text(table_of("a", "b", limits) + table_of("c", "b", limits))
    with pytest.raises(ValueError, match="are the same"):
        found.reload()
    found.admit({"path": "/"}, b"key of a")
    with pytest.raises(APIError, match="1 request in a day"):
        found.admit({"path": "/"}, b"key of a")


def test_the_command_makes_a_table_that_the_server_takes(tmp_path):
    numbers = [name for name in LIMITS if name != "admin"]
    options = [part for name in numbers for part in (f"--{name}", "5")]
    made = CliRunner().invoke(commands, ["key", "alice", *options, "--admin"])
    assert made.exit_code == 0
    (tmp_path / "keys.toml").write_text(made.stdout)
    assert made.stderr.strip() not in made.stdout
    keys, scope = Keys(path=str(tmp_path / "keys.toml")), {"path": "/"}
    keys.admit(scope, made.stderr.strip().encode())
    caller = scope["state"]["caller"]
    assert caller.name == "alice" and caller.limits == KeyLimits(*[5] * len(numbers), admin=True)


def test_a_name_that_is_none(capsys):
    assert main(["key", "a b"]) == 2
    assert "at most 64 letters" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")
@pytest.mark.slow
def test_sighup_reads_keys_again_and_opens_the_audit_log_anew(tmp_path):
    path, log = tmp_path / "keys.toml", tmp_path / "audit.jsonl"
    path.write_text(table_of("a", "one", KeyLimits(requests_per_day=2)))
    options = ("--keys", str(path), "--audit-log", str(log))
    with running(*options) as server, httpx.Client(base_url=server.url, timeout=60) as http:

        def status(key: str) -> int:
            return http.get("/v1/models", headers=bearer(key)).status_code

        def hang_up(said: str) -> None:
            num = sum(said in line for line in server.lines)
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(lambda: sum(said in line for line in server.lines) > num)

        assert (status("one"), status("two")) == (200, 401)
        log.rename(tmp_path / "old.jsonl")
        path.write_text(
            table_of("a", "one", KeyLimits(requests_per_day=2)) + table_of("b", "two", KeyLimits())
        )
        hang_up("files are read again")
        assert [status(one) for one in ("one", "two", "one")] == [200, 200, 429]
        path.write_text("[a]")
        hang_up("what was read before stays")
        assert status("two") == 200
        time.sleep(0.1)
        lines = [path.read_text().splitlines() for path in (tmp_path / "old.jsonl", log)]
        keys = [[json.loads(line)["key"] for line in one] for one in lines]
        assert keys == [["a", None], ["a", "b", "a", "b"]]
        assert server.stop() == 0
