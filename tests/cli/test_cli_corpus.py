"""`--output-dir`: a corpus in parts, by each command that has it."""

import json
import re

import pytest

from pybeam.cli import main
from support.corpus_runs import contents
from support.example_lines import LINES, translations
from support.paths import MODEL, ROOT


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return translations()


@pytest.fixture
def run(tmp_path, capfd):
    """Run a command in this process; returns exit code, the files, and what was said."""

    def execute(command: str, *options: str, model=MODEL):
        code = main(
            [command, "--model", str(model), "--output-dir", str(tmp_path / "out"), *options]
        )
        output = capfd.readouterr()
        assert not output.out
        folder = tmp_path / "out"
        return code, contents(folder) if folder.exists() else {}, output.err

    return execute


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.es"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return str(path)


def text(files: dict[str, bytes]) -> list[str]:
    parts = b"".join(content for name, content in files.items() if name.startswith("part-"))
    return parts.decode().split("\n")[:-1]


def test_translate(run, source, expected):
    code, files, said = run("translate", "--input", source, "--part-lines", "3")
    assert (code, list(files)) == (0, ["errors.jsonl", "part-00000.txt", "part-00001.txt"])
    assert text(files) == expected
    assert "4 lines in" in said and "tokens" in said and "the folder has 2 parts, 4 lines" in said
    code, again, said = run("translate", "--input", source, "--part-lines", "3")
    assert (code, again) == (0, files) and "0 lines in" in said


def test_progress(run, source, monkeypatch):
    monkeypatch.setattr("pybeam.cli.corpus.SECONDS", 0.0)
    said = run("translate", "--input", source, "--part-lines", "3")[2].splitlines()
    number = r"[\d,.]+"
    first = rf"part 0: 3 lines, {number} tokens, {number} lines/s, (\?|\d+:\d\d:\d\d) left \(100%\)"
    assert re.fullmatch(first, said[0]) and said[1].startswith("part 1: 4 lines")


def test_a_line_that_is_too_long_keeps_its_place(run, tmp_path, expected, monkeypatch):
    monkeypatch.setattr("pybeam.corpus.readers.MAX_LINE_BYTES", 200)
    path, options = tmp_path / "in.es", ["--part-lines", "2", "--quiet"]
    path.write_text("\n".join([*LINES[:2], "largo" * 100, LINES[2]]), "utf-8")
    code, files, said = run("translate", "--input", str(path), *options)
    assert (code, text(files)) == (0, [*expected[:2], "", expected[2]])
    assert said == "pybeam: 1 line failed; errors.jsonl says why\n"
    problem = json.loads(files["errors.jsonl"])
    assert problem["line"] == 3 and "found 500; is this text?" in problem["error"]
    (tmp_path / "out" / "part-00001.txt").unlink()  # the run goes on behind the first part
    assert run("translate", "--input", str(path), *options)[:2] == (code, files)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("processes", ["1", "2", "auto"])
def test_processes(run, source, expected, processes):
    options = ["--part-lines", "1", "--processes", processes, "--cache", "2", "--quiet"]
    code, files, said = run("translate", "--input", source, "--input", source, *options)
    assert (code, text(files), said) == (0, expected * 2, "")


def test_json_lines_in_and_out(run, tmp_path, expected):
    path = tmp_path / "in.jsonl"
    records = [{"es": line} for line in LINES[:2]] + [{}]
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    options = ["--column", "es", "--part-lines=2", "--json", "--quiet"]
    code, files, said = run("translate", "--input", str(path), *options)
    records = [json.loads(line) for line in text(files)]
    assert code == 0 and [record["index"] for record in records] == [0, 1, 2]
    assert [record["hypotheses"][0]["text"] for record in records[:2]] == expected[:2]
    assert records[2]["error"] == "the JSON object has no field 'es'"
    assert json.loads(files["errors.jsonl"]) == {"line": 3, "error": records[2]["error"]}
    assert said == "pybeam: 1 line failed; errors.jsonl says why\n"
    code, _, said = run("translate", "--input", str(path), "--column=en", *options[2:])
    assert code == 1 and "--column was es and is en" in said


def test_score(run, source, tmp_path, expected, capfd):
    target = tmp_path / "out.en"
    target.write_text("\n".join(expected) + "\n", "utf-8")
    pair = ["--input", source, "--target", str(target)]
    assert main(["score", "--model", str(MODEL), *pair, "--quiet"]) == 0
    plain = capfd.readouterr().out.split("\n")[:-1]
    code, files, _ = run("score", *pair, "--part-lines", "3")
    assert (code, text(files)) == (0, plain)


def test_score_of_columns(run, tmp_path, expected):
    path = tmp_path / "in.jsonl"
    records = [{"es": es, "en": en} for es, en in zip(LINES, expected, strict=True)]
    path.write_text("\n".join(map(json.dumps, records)))
    code, files, _ = run("score", "--input", str(path), "--column=es", "--target-column=en")
    assert code == 0 and all(float(score) < 0 for score in text(files))


@pytest.mark.parametrize("how", ["names", "folder", "manifest"])
def test_transcribe(run, tmp_path, how, capfd):
    pytest.importorskip("kaldi_native_fbank")
    model = ROOT / "examples" / "models" / "spoken-numbers-en"
    names = [str(path) for path in sorted((ROOT / "examples" / "speech").rglob("*.wav"))]
    assert main(["transcribe", "--model", str(model), *names, "--quiet"]) == 0
    plain = capfd.readouterr().out.split("\n")[:-1]
    (tmp_path / "names.txt").write_text("\n".join([*names, "none.wav"]))
    options = {
        "names": names,
        "folder": ["--input", str(ROOT / "examples" / "speech")],
        "manifest": ["--input", str(tmp_path / "names.txt")],
    }[how]
    code, files, _ = run("transcribe", *options, "--part-lines", "2", model=model)
    assert code == 0 and text(files)[: len(names)] == plain
    if how == "manifest":
        error = json.loads(files["errors.jsonl"])
        assert error["line"] == len(names) + 1 and "No such file" in error["error"]
        assert text(files)[len(names) :] == [""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part-lines", "3"], "--part-lines needs --output-dir"),
        (["--shard", "1/2"], "--shard needs --output-dir"),
        (["--force"], "--force needs --output-dir"),
        (["--output-dir=out", "--shard", "0/2"], "must be I/N"),
        (["--output-dir=out", "--shard", "3/2"], "must be I/N"),
        (["--output-dir=out", "--processes", "0"], "must be a number from 1 to 1024"),
        (["--output-dir=out", "--processes", "1025"], "must be a number from 1 to 1024"),
        (["--output-dir=out", "--threads", "1025"], "1025 is not in the range 1<=x<=1024"),
        (["--output-dir=out", "--output=x"], "either --output or --output-dir"),
        (["--output-dir=out"], "stdin cannot be"),
        (["--input=a", "--input=b"], "several --input need --output-dir"),
    ],
)
def test_wrong_options_name_the_option(options, message, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["translate", "--model", str(MODEL), *options]) == 2
    assert message in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_wrong_files(run, source, tmp_path):
    assert "none.es: there is no such file" in run("translate", "--input", "none.es")[2]
    code, files, said = run("translate", "--input", source, "--column", "es")
    assert (code, files) == (1, {}) and "has no columns" in said
    code, files, said = run("translate", "--input", source, model=tmp_path / "none")
    assert (code, files) == (1, {}) and "there is no such folder" in said


def test_options_that_do_not_fit_the_model(run, source, tmp_path):
    code, files, said = run("translate", "--input", source, "--max-length", "100000")
    assert code == 2 and "--max-length must be" in said
    assert not files and not (tmp_path / "out" / "manifest.json").exists()
