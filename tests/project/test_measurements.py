"""Result files name the sources that they measure, and pages cite them with their dates."""

import json
import re
import subprocess

import pytest

from benchmarks import stale
from benchmarks.__main__ import BENCHMARKS
from benchmarks.journal import Journal
from benchmarks.sources import MEASURES, measured_by
from support.paths import ROOT

FILES = sorted(stale.RESULTS.rglob("*.json"))


def test_result_files_name_their_sources():
    for path in FILES:
        content = json.loads(path.read_text("utf-8"))
        assert content["measures"] == list(measured_by(path.stem)) != [], path.name
        assert all(run["date"] for run in stale.runs_of(content)), path.name


def test_every_benchmark_measures_something_that_is_there():
    assert set(BENCHMARKS) <= set(MEASURES)
    for name, paths in MEASURES.items():
        for path in paths:
            assert any(ROOT.glob(path.removeprefix(":!"))), f"{name}: {path}"


def test_a_journal_names_them(tmp_path):
    Journal(tmp_path, "linear-cpu", ("case",)).save()
    kept = json.loads((tmp_path / "linear-cpu.json").read_text())
    assert kept["measures"] == list(MEASURES["linear"])


def test_pages_cite_results_with_their_dates():
    wrong = [page for page in stale.pages() if stale.dated(text := page.read_text("utf-8")) != text]
    assert not wrong, f"run `python -m benchmarks.stale --dates`, which changes {wrong}"


def speed_up(case: str, ours: str, machine: str = ".") -> str:
    """The best of our rows of a case beside the best of CTranslate2's; `machine` is a folder of results."""
    path = stale.RESULTS / machine / "translate-cpu.json"
    rows = json.loads(path.read_text("utf-8"))["rows"]

    def best(name: str) -> float:
        return max(
            row["lines/s"]
            for row in rows
            if row["case"] == case and re.match(rf"{name}\b", row["system"])
        )

    ratio = best(f"pybeam (int8 )?{ours}") / best("CTranslate2")
    return f"{ratio:.1f}" if ratio > 10 else f"{ratio:.2f}"


def test_pages_say_what_was_measured_beside_ctranslate2():
    searches = [
        ("layouts-5", "fixed 5"),
        ("layouts-1", "greedy"),
        ("layouts-5", "variable 5, 2"),
        ("layouts-5", "variable 5, delta"),
        ("variable-50", "variable 50"),
    ]
    fixed, greedy, pruned, equal, wide = (
        [speed_up(f"{kind}{case}", ours) for kind in ("", "int8-")] for case, ours in searches
    )
    # most has not been measured without AVX-512
    older = [
        speed_up(f"{kind}{case}", ours, "avx2")
        for case, ours in searches[:4]
        for kind in ("", "int8-")
    ]
    said = {
        "README.md": fixed + greedy + wide + older[:4],
        "CHANGELOG.md": fixed,
        "docs/index.md": fixed + wide,
        "docs/coming-from/ctranslate2.md": fixed,
        "docs/why/measurements.md": fixed + greedy + pruned + equal + older,
    }
    missing = {
        name: ratios
        for name, ratios in said.items()
        if not set(ratios) <= set(re.findall(r"\d+\.\d+", (ROOT / name).read_text("utf-8")))
    }
    assert missing == {}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two commits; yields what git says."""
    monkeypatch.setattr(stale, "ROOT", tmp_path)

    def git(*arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *names, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-qm", name)
    return git


def test_what_is_stale(checkout):
    first, last = checkout("rev-list", "HEAD").split()[::-1]

    def said(commit: str | None, *paths: str) -> str | None:
        run = {"commit": commit, "date": "2026-11-20"}
        return stale.verdict({"runs": {"1": run}, "measures": list(paths)})

    assert said(first, "a") is None and said(last, "b") is None
    assert said(first, "a", "b") == "1 commits have changed its sources since"
    assert said(first, ".", ":!b") is None
    assert "commit 0123456 is not in the history" in said("0123456", "a")


def test_dates_are_written_behind_names():
    dates = stale.dates_of({"runs": {"1": {"date": "2026-11-22"}, "2": {"date": "2026-11-20"}}})
    assert dates == "2026-11-20 to 2026-11-22"
    assert stale.dates_of({"date": "2026-11-21"}) == "2026-11-21"
    text = "`wheel.json` of 2001-01-01 to 2002-01-01, `results/wheel.json`, `config.json`"
    date = stale.dates_of(json.loads((stale.RESULTS / "wheel.json").read_text()))
    assert (
        stale.dated(text)
        == f"`wheel.json` of {date}, `results/wheel.json` of {date}, `config.json`"
    )
