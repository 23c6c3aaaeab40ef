"""Many requests at once, after some that came alone: the server answers whatever it has time for."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from support.example_lines import LINES
from support.paths import MODEL
from support.server_process import running

BURST = 128
TIMEOUT = 12.0


def sent(url: str, number: int, **fields) -> tuple[list[httpx.Response], float]:
    """Send so many texts at once. Returns the answers, and the seconds until the last."""
    answers: list[httpx.Response] = []

    def ask(i: int) -> None:
        body = {"text": f"{LINES[i % len(LINES)]} {LINES[(i + 1) % len(LINES)]}", **fields}
        answers.append(httpx.post(f"{url}/v1/translations", json=body, timeout=300))

    threads = [threading.Thread(target=ask, args=[i]) for i in range(number)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, time.monotonic() - began


@pytest.mark.slow
def test_a_burst_after_lonely_requests():
    with running("--timeout", "300", models=[MODEL]) as server:
        for _ in range(40):
            sent(server.url, 1)
        _, seconds = sent(server.url, BURST)
    with running("--timeout", "300", models=[MODEL]) as server:
        for _ in range(40):
            sent(server.url, 1)
        # a machine that is busy otherwise has more time
        answers, _ = sent(server.url, BURST, timeout=max(TIMEOUT, 1.4 * seconds))
    assert [one.status_code for one in answers] == [200] * BURST, answers[0].text
