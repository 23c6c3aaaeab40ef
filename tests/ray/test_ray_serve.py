"""`pybeam serve --ray`: the same server, in replicas that come and go."""

import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.example_lines import LINES, translations
from support.paths import MODEL, ROOT
from support.ray_cluster import MARKS, workers
from support.ray_cluster import cluster as cluster_of
from support.server_process import gauge

pytest.importorskip("ray.serve", reason="needs pip install 'pybeam-search[ray]'")

from pybeam.cli.loading import Setup
from pybeam.cli.serve import ServeOptions, load_models
from pybeam.cli.serve import serve as command
from ray import serve

pytestmark = MARKS
START_SECONDS = 120
LONG = " ".join(LINES * 4)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(is_true, seconds=60.0):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.2)


@contextlib.contextmanager
def running(*options):
    """`pybeam serve --ray` in a process of its own; gives the process and a client."""
    port = free_port()
    words = f"serve --model es-en={MODEL} --ray --port {port}".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "pybeam", *words, *options],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(process.stderr)
        assert any("listening on" in line for line in lines)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def translate(client, text, **options):
    return client.post("/v1/translations", json={"text": text, **options})


def best(answer):
    return answer.json()["translations"][0]["text"]


def test_requests_are_answered_cancelled_and_drained():
    with running("--shutdown-timeout", "60") as (process, client):
        assert client.get("/ready").json()["status"] == "ready"
        with ThreadPoolExecutor() as pool:
            answers = pool.map(lambda line: translate(client, line), LINES)
        assert [best(answer) for answer in answers] == translations()

        # a client that goes takes its work with it
        for _ in range(5):
            with pytest.raises(httpx.ReadTimeout):
                translate(httpx.Client(base_url=client.base_url, timeout=0.2), LONG, width=32)

        def metrics():
            return client.get("/metrics").text

        wait_until(lambda: gauge(metrics(), "pybeam:num_requests_running") == 0, 20)
        assert 'finished_reason="cancelled"' in metrics()

        # what has begun is finished after SIGTERM, and then the process ends
        with ThreadPoolExecutor() as pool:
            work = [pool.submit(translate, client, LONG, width=8) for _ in range(4)]
            wait_until(lambda: gauge(metrics(), "pybeam:num_requests_running") == 4, 20)
            process.send_signal(signal.SIGTERM)
            assert {one.result().status_code for one in work} == {200}
        assert process.wait(60) == 0


@contextlib.contextmanager
def replicas(*numbers):
    """So many replicas, the least and the most, on a node; gives a client and the node."""
    from pybeam.ray import serving
    from pybeam.server.auth import Keys
    from pybeam.server.settings import Settings

    values = command.make_context("serve", ["--model", str(MODEL)]).params
    setup = Setup.take(values)
    load = functools.partial(load_models, {"es-en": str(MODEL)}, setup, ServeOptions(engines=1))
    settings = Settings(port=free_port())
    with cluster_of(1, num_cpus=4) as cluster:
        [node] = cluster.worker_nodes
        application = serving.deployment(
            load, settings, Keys(), replicas=numbers, rows_per_replica=16
        )
        serving.start(application, settings)
        with httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=120) as client:
            yield client, node
        serving.stop()


def num_running():
    [found] = serve.status().applications["pybeam"].deployments.values()
    return found.replica_states.get("RUNNING", 0)


def test_replicas_follow_the_rows_and_are_replaced(monkeypatch):
    from pybeam.ray import serving

    quick = {"upscale_delay_s": 0.0, "look_back_period_s": 2.0, "metrics_interval_s": 0.5}
    monkeypatch.setattr(serving, "SCALING", quick)
    with replicas(1, 2) as (client, node):
        assert num_running() == 1
        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(translate, client, LONG, width=16) for _ in range(200)]
            wait_until(lambda: num_running() == 2, 90)
            for one in work:
                one.cancel()
        assert all(one.result().status_code == 200 for one in work if not one.cancelled())

        # a replica that dies is replaced, and the other one answers meanwhile
        os.kill(workers(node, "ServeReplica")[0], signal.SIGKILL)
        wait_until(lambda: translate(client, LINES[1]).status_code == 200)
        wait_until(lambda: num_running() == 2)
        assert best(translate(client, LINES[1])) == translations()[1]


def test_replicas_say_together_what_they_do_and_whether_they_are_ready():
    with replicas(2, 2) as (client, node):
        assert client.get("/ready").json()["status"] == "ready"
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(functools.partial(translate, client), LINES * 4))
        assert {one.status_code for one in answers} == {200}

        def names():
            text = client.get("/metrics").text
            return {*re.findall(r'^pybeam:engine_steps_total{.*replica="(.*?)"', text, re.M)}

        # each of them has heard of the other
        wait_until(lambda: all(len(names()) == 2 for _ in range(8)))
        text, before = client.get("/metrics").text, names()
        assert gauge(text, "pybeam:request_success_total") == len(answers)

        # another one takes seconds to start
        os.kill(workers(node, "ServeReplica")[0], signal.SIGKILL)
        wait_until(lambda: "starting" in client.get("/ready").text)
        wait_until(lambda: client.get("/ready").status_code == 200, 120)
        wait_until(lambda: len(names()) == 2 and len(before & names()) == 1)
