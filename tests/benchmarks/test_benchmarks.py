"""The one driver of the benchmarks: systems take turns, and rows are kept."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece", "matplotlib"):
    pytest.importorskip(module)

from benchmarks import __main__, corpus, journal, sizes, tasks  # noqa: E402
from benchmarks.journal import Journal  # noqa: E402
from benchmarks.setup import Setup  # noqa: E402
from benchmarks.tasks import IDENTITY, Task, in_turn  # noqa: E402
from pybeam.cli.machine import ISAS  # noqa: E402

ROOT = Path(__file__).parents[2]


class Clock:
    """Time that only the systems move."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        self.log: list[str] = []
        monkeypatch.setattr(tasks.time, "perf_counter", lambda: self.now)

    def system(self, name: str, *seconds: float):
        """A maker of what takes so long in its turns."""
        turns = iter(seconds)

        def run() -> list[list[int]]:
            self.now += next(turns)
            self.log.append(name)
            return [[1], [len(name)]]

        return lambda: run


def test_systems_take_turns_and_medians_count(monkeypatch, tmp_path):
    clock = Clock(monkeypatch)
    makers = {"a": clock.system("a", 1, 9, 2), "bc": clock.system("bc", 4, 4, 4)}
    kept = Journal(tmp_path, "x", IDENTITY)
    tasks.measure(iter([in_turn("first", makers)]), kept, threads=1)
    assert clock.log == ["a", "bc"] * 3
    a, b = kept.rows
    assert (a["seconds"], a["repeats"], b["seconds"]) == (2, 3, 4)
    assert (a["spread"], b["spread"]) == (4.0, 0.0)
    assert (a["sd"], b["sd"]) == (pytest.approx(19**0.5), 0.0)
    assert "times the first" not in a
    assert (b["times the first"], b["same outputs"]) == (0.5, 0.5)


def test_bleu_that_is_lost_has_the_interval_of_paired_samples():
    pieces = corpus.processor()
    lines = ["In the beginning was the Word.", "And the Word was with God.", "The same was so."]
    own = corpus.Corpus([], lines, pieces)
    own = own + own
    right = [pieces.encode(line) for line in own.references]
    assert own.bleu_lost(right, right)[:3] == (0, 0, 0)
    wrong = [*right[:-1], right[0]]
    lost = own.bleu_lost(wrong, right)
    assert lost.value == own.bleu(right) - own.bleu(wrong) > 0
    # a third of the samples lack the last line
    assert lost.low == 0 < lost.value < lost.high


def test_a_disk_that_refuses_loses_no_row(monkeypatch, tmp_path, capsys):
    kept = Journal(tmp_path, "x", IDENTITY)
    with monkeypatch.context() as full:

        def refuse(*_, **__):
            raise OSError("no space left on device")

        full.setattr(Path, "write_text", refuse)
        kept.attempt({"case": "a", "system": "b"}, lambda: {"seconds": 1.5})
    said = capsys.readouterr()
    assert json.loads(said.out)["seconds"] == 1.5
    assert "x.json could not be written: no space left" in said.err
    kept.add({"case": "c", "system": "b"})
    assert [row["case"] for row in Journal(tmp_path, "x", IDENTITY).rows] == ["a", "c"]


def test_broad_runs_measure_all_before_any_is_repeated(monkeypatch, tmp_path):
    clock = Clock(monkeypatch)
    cases = [in_turn(name, {name: clock.system(name, 1, 1)}, repeats=2) for name in "ab"]
    tasks.measure(iter(cases), Journal(tmp_path, "x", IDENTITY), 1, is_broad=True)
    assert clock.log == ["a", "b", "a", "b"]


def test_a_case_is_asked_for_when_those_before_it_are_measured(tmp_path):
    kept = Journal(tmp_path, "x", IDENTITY)

    def cases():
        yield [Task("first", "a", lambda: {"n": 2})]
        yield [Task("second", "a", lambda n=kept.rows[0]["n"]: {"n": n + 1})]

    tasks.measure(cases(), kept, threads=1)
    assert [row["n"] for row in kept.rows] == [2, 3]


@pytest.mark.parametrize("is_broad", [False, True])
def test_what_a_case_has_loaded_is_gone_when_the_next_is_measured(tmp_path, is_broad):
    class Model:
        def __call__(self) -> None:
            pass

    loaded: list[weakref.ref] = []

    def make() -> Model:
        model = Model()
        assert not [name for name in loaded if name()]
        loaded.append(weakref.ref(model))
        return model

    kept = Journal(tmp_path, "x", IDENTITY)
    cases = (in_turn(name, {"a": make}, repeats=2) for name in "abc")
    tasks.measure(cases, kept, threads=1, is_broad=is_broad)
    # a broad run comes back to each
    assert len(loaded) == (6 if is_broad else 3)
    assert not [row for row in kept.rows if "error" in row]


def test_a_system_that_fails_leaves_the_others(monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("no such model")

    kept = Journal(tmp_path, "x", IDENTITY)
    makers = {"broken": broken, "a": Clock(monkeypatch).system("a", 1)}
    tasks.measure(iter([in_turn("first", makers, repeats=1)]), kept, threads=1)
    assert kept.rows[0]["error"] == "RuntimeError: no such model"
    assert kept.rows[1]["seconds"] == 1


def test_rows_of_other_runs_stay_with_their_run(tmp_path):
    Journal(tmp_path, "x", ("case",)).add({"case": "a", "n": 1})
    second = Journal(tmp_path, "x", ("case",), {"threads": 2})
    second.add({"case": "b", "n": 2})
    assert [(row["case"], row["run"]) for row in second.rows] == [("a", "1"), ("b", "2")]
    third = Journal(tmp_path, "x", ("case",))
    third.add({"case": "b", "n": 3})
    assert [(row["n"], row["run"]) for row in third.rows] == [(1, "1"), (3, "3")]
    assert [row["n"] for row in third.own_rows] == [3]


def test_a_machine_without_git_measures_all_the_same(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(journal.subprocess, "run", missing)
    monkeypatch.delenv(journal.COMMIT, raising=False)
    found = journal.environment.__wrapped__()
    assert (found["commit"], found["is_dirty"]) == (None, None)
    assert found["torch"] and found["cpu"]
    named = set(found["cpu"].split("(")[-1].strip(")").split()) & set(ISAS)
    assert named == set(found["cpu_flags"].split()) & set(ISAS)
    monkeypatch.setenv(journal.COMMIT, "1234567")
    assert journal.environment.__wrapped__()["commit"] == "1234567"


def test_results_are_no_change_of_the_code(tmp_path, monkeypatch):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    code, result = tmp_path / "code.py", results / "x.json"
    for path in (code, result):
        path.write_text("1")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        done = subprocess.run(["git", "-C", str(tmp_path), *command], capture_output=True)
        if done.returncode:
            pytest.skip("needs git")
    monkeypatch.setattr(journal, "RESULTS", results)
    monkeypatch.delenv(journal.COMMIT, raising=False)
    result.write_text("2")
    found = journal.environment.__wrapped__()
    assert (len(found["commit"]), found["is_dirty"]) == (10, False)
    code.write_text("2")
    assert journal.environment.__wrapped__()["is_dirty"]


def test_only_names_cases_and_systems():
    task = Task("fixed-5", "pybeam fixed 5, Fifo(64)", dict)
    for names in ((), ("fixed-5",), ("other", "fixed-5"), ("fixed-5/pybeam",)):
        assert task.is_wanted(names), names
    for names in (("fixed",), ("fixed-5/CTranslate2",), ("fixed-50",)):
        assert not task.is_wanted(names), names


def command(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    __main__.main()


def test_mistakes_at_the_command_line(monkeypatch, capsys, tmp_path):
    for arguments, message in (
        (("translat",), "there is no benchmark 'translat'"),
        ((), "name a benchmark, or see --list"),
    ):
        with pytest.raises(SystemExit):
            command(monkeypatch, *arguments)
        assert message in capsys.readouterr().err
    monkeypatch.setenv("OUT", str(tmp_path))
    with pytest.raises(SystemExit, match="translate has no case fixed-6; see --list"):
        command(monkeypatch, "translate", "--only", "fixed-6", "--dry-run")


@pytest.mark.parametrize("data", [["--data", "/some/folder"], ["--data=/some/folder"], []])
def test_the_command_in_results_lacks_the_folder_of_the_data(data):
    found = __main__.command_line(["translate", *data, "--only", "one row", "--lines", "3"])
    assert found == "python -m benchmarks translate --only 'one row' --lines 3"


def test_the_cases_of_the_readme_exist(tmp_path):
    name, *wanted = __main__.README
    setup = Setup("cpu", sizes.CPU, 1, tmp_path, Journal(tmp_path, "x", IDENTITY))
    names = [found[0].case for found in __main__.cases_of(name, setup)]
    assert names[: len(wanted)] == wanted
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_list_names_every_case():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-4000:]
    for word in ("fixed-5", "example-50-sweep", "threads = 1, batch = 8", "VAR-STREAM", "ud-ewt"):
        assert word in run.stdout
