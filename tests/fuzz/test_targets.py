"""A few cases of every target of `make fuzz`, and what it does about those that fail."""

from __future__ import annotations

import random
import re
import tomllib

import pytest

from fuzz import files, operators, programs, running, searches, soak
from fuzz.odd import with_other_bytes
from pybeam import backends
from support.paths import ROOT

needs_native = pytest.mark.skipif(
    "native" not in backends.available(), reason="the extension was not built"
)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_files(seed):
    files.case(seed, ("catalogue", "n-grams", "rnn", "shortlist", "wav"))


@pytest.mark.parametrize("seed", range(5))
def test_programs(seed):
    programs.case(seed, ("function",))


@needs_native
@pytest.mark.parametrize("seed", range(10))
def test_operators(seed):
    operators.case(seed)


@pytest.mark.slow
def test_searches():
    searches.case(3)


def test_a_seed_repeats_its_case():
    content = bytes(range(200))
    once, again = (with_other_bytes(content, random.Random(5)) for _ in range(2))
    assert once == again != content


def test_a_failure_prints_its_seed(capfd, monkeypatch):
    monkeypatch.setattr(running, "_limit_memory", lambda: None)

    def case(seed: int) -> None:
        assert seed != 8, "as planned"

    assert running.run_cases(case, 7, 60.0, 3) == 1
    written, told = capfd.readouterr()
    assert written.split("\n")[:3] == ["case 7", "case 8", "case 9"]
    assert "AssertionError: as planned" in told and "seed 8 failed" in told


def test_a_case_that_ends_its_process_is_told(capfd, monkeypatch):
    begun = iter([([5, 6], -11), ([7, 8], 0)])
    monkeypatch.setattr(running, "_watched", lambda *_: next(begun))
    assert not running.attack("files", 5, 60.0, 4)
    told = capfd.readouterr().out
    assert "seed 6 ended the process with status -11" in told
    assert "make fuzz TARGETS=files SEED=6 CASES=1" in told
    assert "4 cases from seed 5 on, FAILED" in told


@pytest.mark.slow
def test_a_worker_runs_one_case():
    # in a process of its own, with its limits
    assert running.attack("operators", 4, 600.0, 1)


@pytest.mark.slow
def test_a_short_soak():
    found = soak.soak(1500, 120.0, 3, "rnn")
    assert found["requests"] == 1500
    assert found["lost"] == {"requests": 0, "slots": 0, "pages": 0}


def test_a_soak_tells_what_grows():
    def part(i: int, megabytes: float, cpu: float) -> soak.Part:
        return soak.Part(i * 100, float(i), cpu, megabytes, 5, 2 + i // 40)

    flat = [part(min(i, 39), 300.0, i * 0.1) for i in range(40)]
    assert soak.report(flat, {"slots": 0})["wrong"] == []
    grows = [part(i, 300.0 + i, 0.1 * i**2) for i in range(50)]
    wrong = soak.report(grows, {"slots": 2})["wrong"]
    assert [line.split()[0] for line in wrong] == ["2", "memory", "requests", "1"]


FILES = ("limits.py", "scoring.py", "stopping.py", "diversity.py", "catalogue/items.py")


def test_the_core_is_mutated_and_its_laws_are_there():
    laws = tomllib.loads((ROOT / "tests" / "fuzz" / "mutants.toml").read_text("utf-8"))
    core = [ROOT / "pybeam" / name for name in FILES]
    for name in ("engine", "processors", "search", "state"):
        core += (ROOT / "pybeam" / name).glob("*.py")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in core
        if re.search("^ *(def|class) ", path.read_text("utf-8"), re.M)
    }
    assert set(laws) == found
    assert all((ROOT / test).is_file() for tests in laws.values() for test in tests)


def test_mutants_change_what_runs():
    mutants = pytest.importorskip("fuzz.mutants", reason="`make mutate` installs cosmic-ray")
    module = "pybeam/stopping.py"
    text = (ROOT / module).read_text("utf-8")
    changed = [mutants.diff(module, text, one.code(text)) for one in mutants.mutants_of(module)]
    assert any("-        if not self.keeps_best and self.patience != 1:" in one for one in changed)
    assert not any("-    patience: float | None" in one for one in changed)
