"""A real server whose models are swapped, come and go while many ask."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits
from support.example_lines import LINES
from support.paths import MODEL, ROOT
from support.server_process import running, wait_until

ADMIN = {"Authorization": "Bearer boss"}
LIST, LOAD, SWAP, UNLOAD = (f"/admin/models{end}" for end in ("", "/load", "/swap", "/unload"))


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["--engines", "--processes"])
def test_a_swap_under_load_loses_no_request(tmp_path, engines):
    keys = tmp_path / "keys.toml"
    keys.write_text(table_of("boss", "boss", KeyLimits(admin=True)))
    options = (engines, "2", "--keys", str(keys), "--model-folder", str(MODEL.parent))
    options += ("--memory-budget", "40MiB", "--batch-size", "4")
    found: Counter[int] = Counter()
    is_over = threading.Event()

    def ask_on(url):
        with httpx.Client(base_url=url, headers=ADMIN, timeout=60) as http:
            while not is_over.is_set():
                body = {"text": LINES[0], "model": "bible-es-en"}
                found[http.post("/v1/translations", json=body).status_code] += 1

    with running(*options, models=(MODEL,)) as server, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask_on, server.url) for _ in range(2)]
        with httpx.Client(base_url=server.url, headers=ADMIN, timeout=60) as http:

            def act(url, status=200, **body):
                answer = http.post(url, json=body)
                assert answer.status_code == status, answer.text
                return answer.json()

            try:
                for _ in range(2):
                    act(SWAP, name="bible-es-en")
                    wait_until(lambda: len(http.get(LIST).json()["models"]) == 1)
                    assert act(LOAD, name="spoken-numbers-en")["state"] == "ready"
                    sound = {"file": (ROOT / "examples/speech/first.wav").read_bytes()}
                    text = http.post("/v1/audio/transcriptions", files=sound).json()["text"]
                    assert text == "four zero seven"
                    act(UNLOAD, name="spoken-numbers-en")
                act(LOAD, name="again", path="bible-es-en")
                act(LOAD, 507, name="more", path="bible-es-en")
            finally:
                is_over.set()
        for one in asked:
            one.result()
        assert server.stop() == 0
    assert found.keys() == {200} and found[200] > 10
