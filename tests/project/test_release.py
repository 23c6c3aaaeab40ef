"""The scripts of a release: what they read is there, and what is wrong they say."""

import json
import re
import shutil
import tomllib

import pytest
import yaml

from release import check, oldest, wheel, wheel_test
from support.paths import ROOT


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A checkout of the version 1.2.3 that may be released, without a history."""
    (tmp_path / "pybeam").mkdir()
    (tmp_path / "pybeam" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2026-01-31\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [1.2.3] - 2026-01-31\n\n- A change.\n"
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "run", lambda *command, **options: "")
    return tmp_path


def edit(path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_a_tree_that_may_be_released(tree):
    assert check.check_version() == "1.2.3"
    assert check.check_changelog() == "[1.2.3] - 2026-01-31"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("pybeam/__init__.py", "1.2.3", "1.2.3.dev0", "must be of the form 1.2.3"),
        ("CITATION.cff", "1.2.3", "1.2.2", "CITATION.cff must have the line `version: 1.2.3`"),
        (
            "pyproject.toml",
            'dynamic = ["version", "readme"]',
            "dynamic = []",
            "must take the version from",
        ),
    ],
)
def test_versions_that_differ(tree, name, old, new, message):
    edit(tree / name, old, new)
    with pytest.raises(check.Failed, match=re.escape(message)):
        check.check_version()


@pytest.mark.parametrize(
    ("heading", "message"),
    [
        ("[Unreleased]", "rename `## [Unreleased]` to it"),
        ("[1.2.2] - 2026-01-31", "has no section `## [1.2.3] - YYYY-MM-DD`"),
        ("[Unreleased]\n\n- New.\n\n## [1.2.3] - 2026-01-31", "belongs under [1.2.3]"),
    ],
)
def test_a_changelog_that_is_not_finished(tree, heading, message):
    edit(tree / "CHANGELOG.md", "[1.2.3] - 2026-01-31", heading)
    with pytest.raises(check.Failed, match=re.escape(message)):
        check.check_changelog()


def test_a_citation_has_the_day_of_the_release(tree):
    edit(tree / "CITATION.cff", "2026-01-31", "2026-01-30")
    with pytest.raises(check.Failed, match="must have the line `date-released: 2026-01-31`"):
        check.check_changelog()


def test_a_target_is_summed_up_by_its_own_last_line(tmp_path, monkeypatch):
    (tmp_path / "Makefile").write_text("wheel:\n\t@echo begun; echo built\n", "utf-8")
    # as in `make release-check`
    monkeypatch.setenv("MAKELEVEL", "1")
    assert check.made("wheel", tmp_path) == "built"


def test_links_are_skipped_where_there_is_no_network(tree, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(check.urllib.request, "urlopen", refuse)
    with pytest.raises(check.Skipped, match=r"no route.*CHECKS=links` on a machine that reaches"):
        check.check_links()


def test_packages_and_images_are_attested():
    jobs = {
        name: yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text("utf-8"))["jobs"]
        for name in ("wheels", "images")
    }
    [*_, publish] = jobs["wheels"]["publish"]["steps"]
    assert "pypi-publish" in publish["uses"] and publish["with"]["attestations"] is True
    [*_, build, attest] = jobs["images"]["image"]["steps"]
    assert attest["uses"].startswith("actions/attest-build-provenance@")
    dockerfile = (ROOT / build["with"]["file"]).read_text("utf-8")
    named = re.findall(r"^(\w+)=", build["with"]["build-args"], re.M)
    assert set(named) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.M)) and len(named) == 2
    for job in (jobs["wheels"]["publish"], jobs["images"]["image"]):
        assert job["permissions"]["id-token"] == "write"


def test_every_place_names_the_version_of_this_checkout(monkeypatch):
    monkeypatch.setattr(check, "run", lambda *command, **options: "")
    assert check.check_version() == check.version()


def test_what_is_left_to_people_is_a_list(monkeypatch, capsys):
    monkeypatch.setattr(check, "CHECKS", {"version": lambda: "1.2.3"})
    monkeypatch.setattr("sys.argv", ["check"])
    monkeypatch.setattr(check, "version", lambda: "1.2.3")
    assert check.main() == 0
    first, heading, *steps = capsys.readouterr().out.splitlines()
    assert first == "ok       version: 1.2.3" and heading.startswith("left to you")
    assert any("git tag -s v1.2.3" in step for step in steps) and "{" not in "".join(steps)


def test_the_oldest_packages_are_read_from_pyproject():
    assert oldest.oldest(["torch>=2.11", "numpy>=1.23.2"]) == ["numpy==1.23.2"]
    for wrong in ("numpy", "numpy>=1,<3", "numpy~=1.2"):
        with pytest.raises(SystemExit, match="must be of the form name>=version"):
            oldest.oldest([wrong])


def test_a_wheel_that_is_too_large(tmp_path):
    for name, size in (("search", 5_000_000), ("search_examples", 5_000_001), ("search_client", 1)):
        (tmp_path / f"pybeam_{name}-1.2.3-py3-none-any.whl").write_bytes(b"0" * size)
    assert [*wheel.too_large(tmp_path)] == []
    (tmp_path / "pybeam_search-1.2.3-py3-none-any.whl").write_bytes(b"0" * 5_000_001)
    [problem] = wheel.too_large(tmp_path)
    assert problem.startswith("pybeam_search-1.2.3") and "more than 5000000" in problem


def test_smoke_tests_are_there():
    for name in wheel_test.smoke():
        if name.startswith(str(ROOT / "tests")):
            assert (ROOT / name).exists(), name


def test_the_matrix_shows_what_failed_and_what_is_missing():
    rows = [
        {"python": "3.11", "torch": "2.11.0", "passed": True},
        {"python": "3.11", "torch": "2.15.0", "passed": False, "step": "demo"},
        {"python": "3.12", "torch": "2.11.0", "passed": False, "missing": "no Python"},
    ]
    assert [line.split() for line in wheel_test.matrix(rows).splitlines()] == [
        ["python", "torch", "2.11.0", "torch", "2.15.0"],
        ["3.11", "passed", "failed:", "demo"],
        ["3.12", "no", "Python"],
    ]


def test_pairs_that_are_not_tried_keep_their_rows(tmp_path):
    record, built = tmp_path / "wheel.json", tmp_path / "pybeam.whl"
    built.touch()
    old, both = {"python": "3.11", "torch": "2.11.0"}, {"python": "3.14", "torch": "2.11.0"}
    wheel_test.write(record, built, [old, both | {"step": "demo"}])
    wheel_test.write(record, built, [both])
    kept = json.loads(record.read_text())
    assert kept["rows"] == [old | {"run": "1"}, both | {"run": "2"}] and len(kept["runs"]) == 2
    wheel_test.write(record, built, [both, old])
    assert list(json.loads(record.read_text())["runs"]) == ["1"]


def test_an_audit():
    sound = {"name": "torch", "version": "2.13.0", "vulns": []}
    unknown = {"name": "own", "skip_reason": "not on PyPI"}
    broken = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1"}]}
    assert check.audited({"dependencies": [sound, unknown]}) == "1 of 2 packages, none vulnerable"
    with pytest.raises(check.Skipped, match=r"CHECKS=audit` on a machine that reaches"):
        check.audited({"dependencies": [unknown]})
    with pytest.raises(check.Failed, match=r"old 1\.0: PYSEC-1"):
        check.audited({"dependencies": [sound, broken, unknown]})


def test_pages_and_scripts_name_the_same_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}"
    assert list(wheel_test.PYTHONS) == named
    policy = (ROOT / "docs" / "policy.md").read_text("utf-8")
    assert f"Python {named[0]} to {named[-1]}" in policy
