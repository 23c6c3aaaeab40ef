"""Lines become texts, the same whatever stands beside them, and however they are decoded."""

import dataclasses
import os
import pickle
import signal
import threading
import time

import pytest

import pybeam
from pybeam.corpus import Corpus, CorpusError, Form, Here, Job, Part, Score, Unreadable, parts_of
from pybeam.corpus.executors import Plan, Processes, best_plan, relative_seconds
from pybeam.corpus.worker import Memo
from support.corpus_runs import BROKEN, CORPUS, write_corpus
from support.paths import MODEL

JOB = Job((str(MODEL),), pybeam.fixed_beam(2, max_length=20))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return list(Corpus([str(write_corpus(tmp_path_factory.mktemp("source")))]))


@pytest.fixture(scope="module")
def expected(lines):
    """The outputs of the library itself."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    texts = ["" if i == BROKEN else line for i, line in enumerate(CORPUS)]
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), JOB.algorithm)
    requests = [tokenizer.encode(text) if text else [] for text in texts]
    return [tokenizer.decode(r.hypotheses[0].tokens) + "\n" for r in decoder.decode(requests)]


def outputs(finished) -> list[str]:
    parts = sorted(finished, key=lambda part: part.index)
    return [text for part in parts for text in part.outputs]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("part_lines", [1, 5, 100])
@pytest.mark.parametrize("memory", [0, 1, 100])
def test_parts_and_memory_change_nothing(lines, expected, part_lines, memory):
    worker = dataclasses.replace(JOB, memory=memory).open()
    done = list(Here(worker).run(parts_of(lines, part_lines)))
    assert outputs(done) == expected
    assert [one["line"] for part in done for one in part.problems] == [BROKEN + 1]
    assert sum(part.counts.lines for part in done) == len(CORPUS)
    assert sum(part.counts.failed for part in done) == 1


def test_equal_lines_are_decoded_once(lines):
    worker = dataclasses.replace(JOB, memory=100).open()
    decoded = []
    decode = worker._decoder.stream

    def stream(requests):
        for result in decode(requests):
            decoded.append(result.id.line)
            yield result

    worker._decoder.stream = stream
    part = Part(0, 0, lines)
    first = worker.run(part)
    assert sorted(decoded) == sorted(set(decoded))
    second = worker.run(part)
    # the line that failed is tried again
    assert second.outputs == first.outputs and second.counts.expansions == 0
    assert second.problems == first.problems and second.counts.tokens == first.counts.tokens


@pytest.mark.parametrize("memory", [0, 100])
def test_json_has_the_number_of_the_line_in_the_whole_input(lines, memory):
    job = dataclasses.replace(JOB, form=Form(is_json=True), memory=memory)
    worker = pickle.loads(pickle.dumps(job)).open()
    done = worker.run(Part(3, 30, [*lines, (Unreadable("no field"),)]))
    import json

    records = [json.loads(text) for text in done.outputs]
    assert [record["index"] for record in records] == list(range(30, 31 + len(lines)))
    assert records[-1]["error"] == "no field"
    assert done.problems[-1] == {"line": 31 + len(lines), "error": "no field"}


def test_a_line_that_is_cut_is_a_warning():
    done = JOB.open().run(Part(0, 0, [(b"Y dijo Dios. " * 400,)]))
    assert done.counts.warned == 1 and "the line is cut" in done.problems[0]["warning"]


def test_score():
    job = dataclasses.replace(JOB, task=Score())
    done = job.open().run(Part(0, 0, [(b"Y dijo Dios.", b"And God said."), (b"uno", b"\xff")]))
    assert float(done.outputs[0]) < 0 and done.outputs[1] == "\n"
    assert "the target: expected UTF-8" in done.problems[0]["error"]


def test_a_model_of_sound_is_refused():
    with pytest.raises(CorpusError, match="reads text; use `pybeam translate`"):
        from pybeam.corpus import Transcribe

        dataclasses.replace(JOB, task=Transcribe()).load()


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num", [1, 3])
def test_processes(lines, expected, num):
    done = list(Processes(JOB, num).run(parts_of(lines, 2)))
    assert outputs(done) == expected


def test_a_process_that_is_killed_is_replaced(lines, expected):
    pool = Processes(JOB, 2)
    run = pool.run(parts_of(lines, 2))
    done = [next(run)]
    victim = pool._members[0].process
    os.kill(victim.pid, signal.SIGKILL)
    done += run
    assert outputs(done) == expected
    assert not pool._members and victim.exitcode == -signal.SIGKILL


def test_a_part_that_ends_processes_is_given_up(lines, monkeypatch):
    pool = Processes(JOB, 2)
    kill = os.kill
    monkeypatch.setattr(
        pool._worker, "run", lambda part: kill(os.getpid(), signal.SIGKILL), raising=False
    )
    with pytest.raises(CorpusError, match=r"two processes ended while .*lines 1 to 22 .*memory"):
        list(pool.run(parts_of(lines, 100)))


@pytest.mark.slow
def test_an_error_of_decoding_and_an_error_of_reading(lines, expected, monkeypatch):
    def broken():
        yield from parts_of(lines[:6], 2)
        raise CorpusError("cut")

    pool = Processes(JOB, 2)
    done = []
    with pytest.raises(CorpusError, match="cut"):
        done.extend(pool.run(broken()))
        for part in pool.run(broken()):
            done.append(part)
    # what was in work when reading failed is kept
    done = []
    with pytest.raises(CorpusError):
        for part in pool.run(broken()):
            done.append(part)
    assert outputs(done) == expected[:6]
    monkeypatch.setattr(pool._worker, "run", lambda part: 1 / 0)
    with pytest.raises(CorpusError, match="lines 1 to 2: ZeroDivisionError"):
        list(pool.run(parts_of(lines[:2], 2)))


def test_costly_parts_come_first(lines):
    parts = [Part(i, i, [(b"x" * n,)]) for i, n in enumerate([1, 50, 20, 90])]
    assert sorted(parts, key=lambda part: -part.cost)[0].index == 3
    # many short lines cost more than a long one of as many bytes
    assert Part(0, 0, [(b"x",)] * 50).cost > Part(0, 0, [(b"x" * 50,)]).cost


def test_plan():
    assert best_plan(1, 8) == Plan(1, 8)
    assert best_plan(1000, 8) == Plan(8, 1)
    assert best_plan(8, 8) == Plan(8, 1)
    # three rounds of four, and not two rounds of six that use four cores less in the second
    for num_parts in (1, 2, 3, 5, 9, 100):
        plan = best_plan(num_parts, 8)
        seconds = relative_seconds(num_parts, plan)
        assert all(seconds <= relative_seconds(num_parts, Plan(p, 8 // p)) for p in range(1, 9))
    assert relative_seconds(4, Plan(2, 1), 0.5) == 2 and relative_seconds(4, Plan(1, 2), 0.5) == 3


def test_memo():
    memo = Memo(2)
    assert memo.ask("a", "first") == (None, True)
    assert memo.ask("a", "second") == (None, False)
    assert memo.tell("a", 1) == ["second"]
    assert memo.ask("a", "third") == (1, False)
    for key in "bc":
        memo.ask(key, key)
        memo.tell(key, ord(key))
    assert memo.ask("a", "x") == (None, True)
    memo.tell("a", 9, keeps=False)
    assert memo.ask("a", "x") == (None, True)
    memo.give_up()
    assert memo.ask("a", "x") == (None, True)


def test_a_stream_that_is_left_leaves_nobody_waiting(lines):
    worker = dataclasses.replace(JOB, memory=9).open()
    before = threading.active_count()
    stream = worker.stream(lines)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "the thread that reads ahead waits for ever"
        time.sleep(0.01)
    assert len(worker.run(Part(0, 0, lines)).outputs) == len(lines)
