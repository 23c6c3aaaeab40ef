"""A run, its folder and its manifest, with an executor that decodes nothing."""

import dataclasses
import errno
import json

import pytest

import pybeam
from pybeam.corpus import Corpus, CorpusError, Counts, FinishedPart, Form, Job, Manifest, Run
from pybeam.corpus.run import Listener
from support.corpus_runs import contents
from support.paths import MODEL

JOB = Job((str(MODEL),), pybeam.greedy(), options={"--width": 5})


class Shouting:
    """Writes lines in capitals; the lines "no" fail. Parts come in a strange order."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.done = most, []

    def run(self, parts):
        taken = []
        for part in parts:
            taken.append(part)
            if len(taken) == 2:
                yield from map(self.finish, reversed(taken))
                taken = []
        yield from map(self.finish, taken)

    def finish(self, part):
        if len(self.done) == self.most:
            raise KeyboardInterrupt
        self.done.append(part.index)
        problems = [
            {"line": part.first_line + i + 1, "error": "no"}
            for i, (line,) in enumerate(part.lines)
            if line == b"no"
        ]
        outputs = [line.decode().upper() + "\n" for (line,) in part.lines]
        counts = Counts(lines=part.num_lines, failed=len(problems))
        return FinishedPart(part.index, part.first_line, part.checksum, outputs, problems, counts)


class Notes(Listener):
    def __init__(self) -> None:
        self.notes, self.shares = [], []

    def note(self, message):
        self.notes.append(message)

    def finished(self, part, share):
        self.shares.append(share)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {i}\n" if i % 5 else "no\n" for i in range(23)))
    return path


@pytest.fixture
def run(source, tmp_path):
    def execute(executor=None, folder="out", job=JOB, paths=None, listener=None, **options):
        executor = executor or Shouting()
        corpus = Corpus([str(path) for path in paths or [source]])
        work = Run(
            tmp_path / folder, job, corpus, **{"part_lines": 4, **options}, listener=listener
        )
        return work.execute(lambda num_parts: executor)

    return execute


def test_parts_errors_and_summary(run, source, tmp_path):
    summary = run()
    assert (summary.num_parts, summary.num_lines, summary.num_failed) == (6, 23, 5)
    found = contents(tmp_path / "out")
    assert (
        b"".join(found[f"part-{i:05}.txt"] for i in range(6)).decode() == source.read_text().upper()
    )
    lines = [json.loads(line)["line"] for line in found["errors.jsonl"].splitlines()]
    assert lines == [1, 6, 11, 16, 21] and len(found) == 7
    manifest = Manifest.read(tmp_path / "out" / "manifest.json")
    assert manifest.num_lines == 23 and sorted(manifest.parts) == list(range(6))


def test_a_finished_run_starts_nothing(run):
    run()
    again = Shouting()
    summary = run(again)
    assert not again.done and summary.num_parts == 6 and summary.counts.lines == 0


def test_only_what_is_left_is_decoded(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Shouting(most=3))
    again = Shouting()
    run(again)
    assert sorted(again.done) == [2, 4, 5]
    run(folder="whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_another_run_is_refused_in_words(run, source, tmp_path, monkeypatch):
    run()
    other = dataclasses.replace(JOB, options={"--width": 6, "--json": True})
    with pytest.raises(
        CorpusError, match="--json was not given and is given; --width was 5 and is 6"
    ):
        run(job=other)
    with pytest.raises(CorpusError, match="--part-lines was 4 and is 5"):
        run(part_lines=5)
    with pytest.raises(CorpusError, match="1 input files, but this one has 2"):
        run(paths=[source, source])
    monkeypatch.setattr(Job, "model_checksums", lambda self: {"model.safetensors": "another"})
    with pytest.raises(CorpusError, match=r"the model is another one \(config.json, .*model.safet"):
        run()
    monkeypatch.undo()
    monkeypatch.setattr("pybeam.corpus.run.__version__", "0.0.9")
    with pytest.raises(CorpusError, match=r"pybeam was .* and is 0\.0\.9"):
        run()
    # speed may change
    monkeypatch.undo()
    run(job=dataclasses.replace(JOB, schedule=pybeam.Batch(3), threads=2, memory=9))


def test_begin_anew(run, tmp_path):
    run(part_lines=2)
    executor = Shouting()
    run(executor, job=dataclasses.replace(JOB, options={}), force=True)
    assert len(executor.done) == 6
    assert len(list((tmp_path / "out").glob("part-*"))) == 6


def test_a_touched_input_is_compared_line_by_line(run, source):
    run()
    text = source.read_text()
    source.write_text(text)
    again = Shouting()
    run(again)
    assert not again.done
    source.write_text(text.replace("line 7", "line 8"))
    with pytest.raises(
        CorpusError, match="has changed since the run began: its lines 5 to 8 are others"
    ):
        run()
    source.write_text(text + "more\n")
    with pytest.raises(CorpusError, match="bytes"):
        run()


def test_damaged_parts_are_decoded_again(run, tmp_path):
    run()
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "part-00001.txt").write_text("damage")
    (tmp_path / "out" / "part-00004.txt").unlink()
    again, notes = Shouting(), Notes()
    run(again, listener=notes)
    # parts with errors too, since the errors of single parts are gone
    assert {1, 4} <= set(again.done)
    assert len(notes.notes) == 2 and "part-00001.txt is damaged" in notes.notes[0]
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "errors.jsonl").unlink()
    run()
    assert contents(tmp_path / "out") == before


def test_shards_share_a_folder(run, tmp_path):
    run(folder="whole")
    executors = [Shouting() for _ in range(3)]
    for i, executor in enumerate(executors, 1):
        run(executor, folder="shared", shard=(i, 3))
    assert [sorted(executor.done) for executor in executors] == [[0, 3], [1, 4], [2, 5]]
    whole, shared = contents(tmp_path / "whole"), contents(tmp_path / "shared")
    parts = {name for name in whole if name.startswith("part")}
    assert all(whole[name] == shared[name] for name in parts)
    errors = [shared[f"errors-{i:05}-of-00003.jsonl"] for i in (1, 2, 3)]
    assert sorted(b"".join(errors).splitlines()) == sorted(whole["errors.jsonl"].splitlines())
    with pytest.raises(CorpusError, match="--shard was 1/3 and is 1/2"):
        run(folder="shared", shard=(1, 2))
    with pytest.raises(CorpusError, match="--width was 5"):
        run(folder="shared", shard=(1, 3), job=dataclasses.replace(JOB, options={"--width": 6}))
    with pytest.raises(CorpusError, match="--shard was"):
        run(folder="shared", shard=(1, 2), force=True)
    assert contents(tmp_path / "shared") == shared
    # its own share alone
    executor = Shouting()
    run(executor, folder="shared", shard=(2, 3), force=True)
    assert sorted(executor.done) == [1, 4]
    # a whole run replaces all shares
    run(folder="shared", force=True)
    assert contents(tmp_path / "shared") == whole
    assert [path.name for path in (tmp_path / "shared").glob("manifest*")] == ["manifest.json"]


def test_parts_of_nobody_are_not_overwritten(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000.txt").write_text("mine")
    with pytest.raises(CorpusError, match="without a manifest"):
        run()


def test_a_manifest_that_is_none(run, tmp_path):
    run()
    path = tmp_path / "out" / "manifest.json"
    path.write_text("{")
    with pytest.raises(CorpusError, match="is no manifest of pybeam"):
        run()
    path.write_text('{"format": 99}')
    with pytest.raises(CorpusError, match="has format 99"):
        run()
    run(force=True)


def test_an_empty_input(run, source, tmp_path):
    source.write_bytes(b"")
    assert run().num_parts == 0
    assert contents(tmp_path / "out") == {"errors.jsonl": b""}


def test_extension_of_parts(run, tmp_path):
    run(job=dataclasses.replace(JOB, form=Form(is_json=True)))
    assert (tmp_path / "out" / "part-00000.jsonl").exists()


def test_a_file_system_without_locks_is_named(run, monkeypatch):
    def refused(fd: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pybeam.corpus.folder.hold", refused)
    with pytest.raises(CorpusError, match=r"out cannot be locked .*: No locks available; give"):
        run()
