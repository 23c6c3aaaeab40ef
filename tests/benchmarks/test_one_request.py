"""One request at a time: what is counted, and the processes that decode."""

from __future__ import annotations

import gc

import pytest

import pybeam

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import corpus, one_request, one_row, worker  # noqa: E402
from benchmarks.one_request import Latency, systems  # noqa: E402
from benchmarks.translation import flops_of  # noqa: E402
from benchmarks.worker import System, Worker  # noqa: E402

SOURCES = [[5, 9, 2], [7, 2]]
OUTPUTS = [[4, 4, 4], [6]]


class Lines:
    sources = SOURCES

    def bleu(self, outputs: list[list[int]]) -> float:
        return 100.0 * (outputs == OUTPUTS)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(one_request, "SETTLE", 0)


def latency_of(
    known: dict, system: System, *turns: tuple[float, float], steps=(4, 2), outputs=OUTPUTS
):
    """A system that takes so many seconds for each of the lines, turn by turn."""
    seconds = iter(turns)
    known[system] = Latency(
        lambda sources: {"seconds": next(seconds), "outputs": outputs, "steps": list(steps)},
        Lines,
        known,
    )
    return known[system]


def test_requests_of_all_turns_count():
    latency = latency_of({}, System("pybeam", "int8"), (0.1, 0.2), (0.3, 0.8))
    assert latency()["p50_ms"] == pytest.approx(150)
    row = latency()
    assert (row["repeats"], row["lines"], row["p50_ms"]) == (2, 2, pytest.approx(250))
    assert row["p95_ms"] == pytest.approx(725)
    # EOS is a token and takes a step
    assert (row["tokens"], row["steps"]) == (3, 3)
    assert row["ms/token"] == row["ms/step"] == pytest.approx(350 / 3)
    assert row["BLEU"] == 100


def test_a_peer_counts_with_the_policy_that_is_better_for_it():
    known: dict[System, Latency] = {}
    for policy, seconds in ((None, 0.4), ("passive", 0.2)):
        peer = latency_of(known, System("CTranslate2", "int8", policy), (seconds, seconds))
        peer()
    row = latency_of(known, System("pybeam", "int8"), (0.1, 0.1), outputs=[[4, 4, 4], [7]])()
    assert row["of CTranslate2 int8"] == pytest.approx(0.5)
    assert "of CTranslate2 float32" not in row
    assert row["same outputs"] == 0.5


def test_a_system_whose_steps_are_not_known_has_no_such_column():
    row = latency_of({}, System("CTranslate2", "int8"), (0.1, 0.1), steps=(None, None))()
    assert "steps" not in row and "ms/step" not in row


def test_with_one_thread_nobody_waits():
    one, two = systems(1), systems(2)
    assert {system.policy for system in one} == {None}
    assert {system.policy for system in two} == {None, "passive"}
    assert two[0].library == one[0].library == "CTranslate2", "ours are compared with them"
    assert len({str(system) for system in two}) == len(two)


def test_weights_of_a_step_are_those_that_it_multiplies_by():
    model = pybeam.load_model(corpus.MODEL, device="cpu")
    layers = model.config.num_decoder_layers
    # of each layer five products to d and one to the inner size, the first of them thrice as wide
    biases = layers * (7 * model.config.hidden_size + model.config.decoder_inner_size)
    weights = flops_of(model.config)[0] // 2
    # float16 holds them exactly
    packed = one_row.weight_bytes(model) - 4 * biases
    assert packed in (2 * weights, 4 * weights)


OPTIONS = dict(network="example", threads=1, folder="", widened={}, data=None)


@pytest.mark.slow
def test_a_worker_decodes_in_a_process_of_its_own():
    server = Worker(System("pybeam", "float32"), OPTIONS)
    found = server.decode("fixed-5", SOURCES)
    decoder = pybeam.Decoder(pybeam.load_model(corpus.MODEL), worker.SEARCHES["fixed-5"][0])
    results = decoder.decode(SOURCES)
    assert found["outputs"] == [result.hypotheses[0].tokens for result in results]
    assert found["steps"] == [result.steps for result in results]
    assert all(seconds > 0 for seconds in found["seconds"])
    with pytest.raises(RuntimeError, match="KeyError: 'fixed-6'"):
        server.decode("fixed-6", SOURCES)
    assert server.decode("fixed-5", SOURCES)["outputs"] == found["outputs"], "it goes on"
    process = server._process
    del server
    gc.collect()
    assert process.poll() is not None, "it ends with its owner"


@pytest.mark.slow
def test_a_process_that_has_ended_is_started_again():
    server = Worker(System("pybeam", "float32"), OPTIONS)
    server.decode("greedy", SOURCES)
    server._process.kill()
    server._process.wait()
    assert server.decode("greedy", SOURCES)["outputs"]


def test_a_process_that_says_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(worker.sys, "executable", "false")
    with pytest.raises(RuntimeError, match="the process ended with exit code 1"):
        Worker(System("pybeam", "float32"), OPTIONS).decode("greedy", SOURCES)


def test_the_policy_reaches_the_process_and_no_other_does(monkeypatch):
    started = []

    def start(*_, env, **__):
        started.append(env)
        raise InterruptedError

    monkeypatch.setattr(worker.subprocess, "Popen", start)
    monkeypatch.setenv(worker.POLICY, "active")
    for policy in (None, "passive"):
        with pytest.raises(InterruptedError):
            Worker(System("CTranslate2", "int8", policy), OPTIONS).decode("greedy", SOURCES)
    assert [env.get(worker.POLICY) for env in started] == [None, "passive"]
