"""Mistakes of somebody who is new here: each error names the thing and a remedy, before any work is lost."""

import io
import os
import sys
from pathlib import Path

import pytest

from pybeam.cli import main
from pybeam.cli.files import check_writable
from support.example_lines import LINES
from support.paths import MODEL, ROOT

DIGITS = ROOT / "examples" / "models" / "spoken-numbers-en"
NOWHERE = "/no/such/folder/out"


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "in.txt"
    path.write_text(LINES[0] + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("command", ["translate", "explain"])
def test_who_gives_no_model_is_told_what_there_may_be(command, capfd):
    assert main([command, "bible-es-en"]) == 2
    said = capfd.readouterr().err
    assert "Missing option '--model'. Give a folder, a name on the Hugging Face hub, or" in said


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["translate", "--model", str(MODEL)], "--input -: stdin is closed; give a file"),
        (["transcribe", "--model", str(DIGITS), "-"], "-: stdin is closed; give a file"),
    ],
)
def test_a_closed_stdin_is_named(command, message, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(command) == 1
    assert message in capfd.readouterr().err


def test_a_closed_stdout_is_named(source, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["translate", "--model", str(MODEL), "--input", source]) == 1
    assert "--output -: stdout is closed; give a file" in capfd.readouterr().err


def test_a_closed_stderr_changes_no_output(source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    output = tmp_path / "out.txt"
    command = ["translate", "--model", str(MODEL), "--input", source, "--output", str(output)]
    assert main(command) == 0
    sys.stderr.close()
    assert output.read_text("utf-8").count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
def test_a_full_disk_is_named(monkeypatch, capfd):
    with open("/dev/full", "wb", 0) as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full, "utf-8", write_through=True))
        assert main(["key", "alice"]) == 1
    assert "cannot write the output: No space left" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "suffix", "flag"),
    [
        (["explain", "--model", str(MODEL), "a"], ".html", "--output"),
        (["graph", "--model", str(MODEL), "a"], ".html", "--output"),
        (["compare", "searches.toml"], ".html", "--output"),
        (["profile", "--model", str(MODEL)], ".json", "--trace"),
        (["retrieve", "--model", str(MODEL), "--catalogue", "a"], ".safetensors", "--save"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    command, suffix, flag, source, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    Path("searches.toml").write_text(
        f"model = {str(MODEL)!r}\ninput = {source!r}\n[search.greedy]\nalgorithm = 'greedy'\n"
    )
    # who loads a model has begun to work
    monkeypatch.setattr("pybeam.load", None)
    monkeypatch.setattr("pybeam.load_model", None)
    monkeypatch.setattr("pybeam.load_tokenizer", None)
    assert main([*command, flag, NOWHERE + suffix]) == 1
    assert f"{flag} {NOWHERE}{suffix}: No such file" in capfd.readouterr().err


def test_a_file_is_as_it_was_when_it_has_been_tried(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("precious")
    check_writable(str(old))
    check_writable(str(new))
    assert old.read_text() == "precious" and not new.exists()


def test_files_are_named_without_numbers_of_the_system(capfd):
    assert main(["transcribe", "--model", str(DIGITS), "absent.wav", __file__]) == 1
    assert "file 1: absent.wav: No such file or directory\n" in capfd.readouterr().err


def test_without_any_recording_an_earlier_output_stays(tmp_path, capfd):
    output = tmp_path / "out.txt"
    output.write_text("precious")
    command = ["transcribe", "--model", str(DIGITS), "absent.wav", "--output", str(output)]
    assert main(command) == 1
    assert "Error: absent.wav: No such file or directory" in capfd.readouterr().err
    assert output.read_text() == "precious"


def test_an_empty_catalogue_is_named(source, tmp_path, capfd):
    path = tmp_path / "empty.txt"
    path.write_text("")
    command = ["retrieve", "--model", str(MODEL), "--input", source, "--catalogue", str(path)]
    assert main(command) == 1
    assert f"--catalogue {path}: `items` must hold at least one" in capfd.readouterr().err


def test_quantize_takes_a_model_by_its_name(tmp_path, capfd):
    pytest.importorskip("pybeam_examples")
    assert main(["quantize", "bible-es-en", "--output", str(tmp_path / "int8"), "--quiet"]) == 0
    assert (tmp_path / "int8" / "model.safetensors").exists()
    assert main(["quantize", "./absent", "--output", str(tmp_path / "other")]) == 1
    assert "MODEL ./absent: there is no such folder as absent" in capfd.readouterr().err


def test_a_server_that_is_not_there_is_named(source, capfd):
    command = ["bench-serve", "http://127.0.0.1:1", "--input", source, "--rate", "1"]
    assert main(command) == 1
    said = capfd.readouterr().err
    assert "http://127.0.0.1:1, /v1/translations: " in said and "[Errno" not in said
