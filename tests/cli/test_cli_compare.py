"""`pybeam compare` gives the table of `pybeam.compare`, and its errors name the file and the option."""

from __future__ import annotations

import json

import pytest

import pybeam
from pybeam.cli import main
from pybeam.cli.compare import _lines
from pybeam.study import Exact
from support.paths import MODEL

LINES = ["Jesús lloró.", "Y fué la tarde y la mañana un día."]
TEXTS = ["Jesus wept.", "And the evening and the morning were the first day."]
SEARCHES = """
[search.greedy]
algorithm = "greedy"
max-length = 20
[search."by step"]
width = [2, 3]
length-penalty = 0.5
max_length = 20
[search.exact]
algorithm = "exact"
max-length = 20
"""

AGAINST = """
[search.greedy]
algorithm = "greedy"
[against]
algorithm = "exact"
max-length = """


@pytest.fixture
def run(tmp_path, capfd):
    """Run the command on a file; returns its exit code, stdout and stderr."""
    (tmp_path / "in.es").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "out.en").write_text("".join(f"{line}\n" for line in TEXTS))
    files = {"model": MODEL, "input": tmp_path / "in.es", "reference": tmp_path / "out.en"}
    head = "".join(f"{name} = {json.dumps(str(path))}\n" for name, path in files.items())

    def command(text: str, *options: str) -> tuple[int, str, str]:
        (tmp_path / "a.toml").write_text(head + text)
        code = main(["compare", str(tmp_path / "a.toml"), "--quiet", *options])
        return code, *capfd.readouterr()

    return command


def test_results_are_those_of_the_library(run, tmp_path):
    path = tmp_path / "out.json"
    options = ["--output", str(path), "--latency", "0", "--samples", "20"]
    code, printed, said = run('metric = "exact_match"\n' + SEARCHES, *options)
    assert (code, said) == (0, "")
    searches = {
        "greedy": pybeam.greedy(max_length=20, scoring=pybeam.scoring.power(1.0)),
        "by step": pybeam.fixed_beam([2, 3], scoring=pybeam.scoring.power(0.5), max_length=20),
        "exact": Exact(max_length=20),
    }
    model = pybeam.load(MODEL, progress=False)
    expected = pybeam.compare(
        searches, model, LINES, TEXTS, metrics=["exact_match"], latency=0, samples=20
    )
    found = json.loads(path.read_text("utf-8"))
    assert [*found["rows"]] == [*searches]
    for name, row in expected.rows.items():
        for column, measure in row.items():
            if column != "CPU ms":
                assert found["rows"][name][column] == pytest.approx(measure.value)
    outputs = {name: [one["output"] for one in own] for name, own in found["found"].items()}
    assert outputs == {n: [one.output for one in own] for n, own in expected.found.items()}
    assert printed.splitlines()[0] == str(expected).splitlines()[0].rstrip()


def test_lines_end_as_those_of_translate(tmp_path):
    path = tmp_path / "in.es"
    path.write_bytes("\ufeffa\u2028b\r\n\n c\x85d\x0be\n\x0cf".encode())
    assert _lines(str(path)) == ["a\u2028b", "", "c\x85d\x0be", "f"]


@pytest.mark.parametrize(
    "text, options, code, message",
    [
        ("", [], 2, "must have a table [search.NAME]"),
        ("search = 3", [], 2, "must have a table [search.NAME]"),
        ("bems = 3\n" + SEARCHES, [], 2, "'bems' is no option of `pybeam compare`"),
        ("[search.a]\nbems = 3", [], 2, "[search.a]: 'bems' is no option of a search"),
        ("[search.a]\nwidth = 0", [], 2, "[search.a]: Invalid value for '--width'"),
        ("[search.a]\nalgorithm = 'exact'", [], 2, "needs max-length"),
        ("[search.a]\nalgorithm = 'exact'\nbeam = 3", [], 2, "'beam' is no option of an exact"),
        (AGAINST + "'20'", [], 2, "[against]: max-length must be a whole number, but is '20'"),
        (AGAINST + "0", [], 2, "[against]: --max-length must be at least 1, but is 0"),
        (SEARCHES, ["--output", "a.pdf"], 2, "--output must end in .txt"),
        (SEARCHES, ["--metric", "blue"], 2, "Error: --metric must hold 'bleu'"),
        (SEARCHES, ["--reference", "LATIN"], 1, "LATIN: line 2: expected UTF-8"),
        (SEARCHES, ["--reference", "SHORT"], 2, "Error: --reference must have one for each"),
        (SEARCHES, ["--input", "EMPTY", "--reference", "EMPTY"], 2, "Error: --input must have one"),
        (SEARCHES, ["--journal", "SHORT"], 2, "Error: --journal must be a new file"),
        (SEARCHES, ["--input", "missing"], 1, "missing"),
        ("[search", [], 2, "must be a TOML file"),
    ],
)
def test_errors(run, tmp_path, monkeypatch, text, options, code, message):
    monkeypatch.chdir(tmp_path)
    for name, data in {"SHORT": b"one\n", "LATIN": b"one\n\xe9\n", "EMPTY": b""}.items():
        (tmp_path / name).write_bytes(data)
    found = run(text, *options)
    assert found[0] == code, found
    assert message in " ".join(found[2].split())
