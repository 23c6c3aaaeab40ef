"""A corpus on a cluster: what is lost is decoded again, and the files are those of one process."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.example_lines import LINES
from support.paths import MODEL, ROOT
from support.ray_cluster import MARKS, workers
from support.ray_cluster import cluster as cluster_of

pytest.importorskip("ray.data", reason="needs pip install 'pybeam-search[ray]'")

from pybeam.cli import main

pytestmark = MARKS
NUM_LINES, PART_LINES = 1200, 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with an input, in which a few lines fail, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [f"{LINES[i % 4]} {i % 9}".encode() for i in range(NUM_LINES)]
    lines[100] = b"\xff"
    lines[101] = b""
    (folder / "in.es").write_bytes(b"".join(line + b"\n" for line in lines))
    assert main(arguments(folder, "alone")) == 0
    return folder


def arguments(folder, output, *more):
    words = f"translate --model {MODEL} --width 3 --part-lines {PART_LINES} --threads 1 --quiet"
    paths = ["--input", str(folder / "in.es"), "--output-dir", str(folder / output)]
    return [*words.split(), *paths, *more]


@contextlib.contextmanager
def running(*options):
    process = subprocess.Popen(
        [sys.executable, "-m", "pybeam", *options], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_parts(output: Path, number: int) -> None:
    end = time.monotonic() + 120
    while len(list(output.glob("part-*"))) < number:
        assert time.monotonic() < end
        time.sleep(0.02)


def content(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir() if path.name[0] != "."}


def same(folder, output):
    return content(folder / output) == content(folder / "alone")


@pytest.mark.parametrize("loss", ["worker", "node", "both"])
def test_losses_cost_time_alone(corpus, loss):
    output = f"after-{loss}"
    with cluster_of(3) as cluster:
        options = arguments(corpus, output, "--ray", "--address", cluster.address)
        with running(*options) as process:
            wait_for_parts(corpus / output, 3)
            nodes = [node for node in cluster.worker_nodes if workers(node, "_Actor")]
            if loss != "node":
                os.kill(workers(nodes[0], "_Actor")[0], signal.SIGKILL)
            if loss != "worker":
                cluster.remove_node(nodes[1], allow_graceful=False)
            assert process.wait(120) == 0, process.stderr.read()
    assert same(corpus, output)


@pytest.mark.parametrize("first, then", [("--ray", ""), ("", "--ray")])
def test_a_killed_job_is_resumed_by_either(corpus, first, then):
    output = f"resumed{then}"
    with running(*arguments(corpus, output, *first.split())) as process:
        wait_for_parts(corpus / output, 3)
        process.kill()
    num_parts = len(list((corpus / output).glob("part-*")))
    assert num_parts < NUM_LINES // PART_LINES
    with running(*arguments(corpus, output, *then.split())) as process:
        assert process.wait(120) == 0
    assert same(corpus, output)


def test_a_part_that_ends_every_process_is_named(monkeypatch):
    """And so are errors that are not those of a machine."""
    import pybeam
    from pybeam.corpus import CorpusError, Job, Part
    from pybeam.ray import executor

    class Deadly(executor._Actor):
        def run(self, part):
            if part.index == 1:
                os._exit(1)
            if part.index == 2:
                raise KeyError("wrong")
            return super().run(part)

    monkeypatch.setattr(executor, "_Actor", Deadly)
    job = Job((str(MODEL),), pybeam.greedy())
    parts = [Part(i, 2 * i, [(line.encode(),) for line in LINES[:2]]) for i in range(3)]
    with cluster_of(1):
        crew = executor.RayExecutor(job)
        with pytest.raises(CorpusError, match="lines 3 to 4 end each process that decodes them"):
            list(crew.run(parts[:2]))
        with pytest.raises(KeyError, match="wrong"):
            list(crew.run(parts[2:]))
        [whole] = crew.run(parts[:1])
        assert whole.outputs == job.open().run(parts[0]).outputs
