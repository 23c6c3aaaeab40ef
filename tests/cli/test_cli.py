"""The command line on the example model: what is written, in which order, and how it ends."""

import json
import os
import re
import shutil
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import pybeam
from pybeam.cli import machine, main
from pybeam.cli.info import PACKAGES
from pybeam.cli.run import describe_lines
from support.example_lines import LINES, translations
from support.paths import MODEL, ROOT


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return translations()


@pytest.fixture
def translate(tmp_path, capfd):
    """Run `pybeam translate` in this process on lines; returns exit code, stdout, stderr."""

    def run(lines, *options: str, ending: str = "\n"):
        path = tmp_path / "in.txt"
        text = lines if isinstance(lines, bytes) else ("\n".join(lines) + ending).encode()
        path.write_bytes(text)
        code = main(["translate", "--model", str(MODEL), "--input", str(path), *options])
        output = capfd.readouterr()
        return code, output.out.split("\n")[:-1], output.err

    return run


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("schedule", ["fifo", "streaming", "batch"])
def test_order_is_that_of_the_input(translate, expected, schedule):
    code, lines, errors = translate(LINES, "--schedule", schedule, "--batch-size", "2")
    assert (code, lines) == (0, expected)
    assert "4 lines in" in errors and "expansions" in errors and "width 4" in errors


def test_quiet_says_nothing(translate, expected):
    assert translate(LINES, "--quiet") == (0, expected, "")


def test_input_without_a_final_newline_and_with_windows_line_ends(translate, expected):
    assert translate(LINES, "--quiet", ending="")[1] == expected
    text = "\ufeff" + "\r\n".join(LINES)
    assert translate(text.encode(), "--quiet")[1] == expected


def test_empty_lines_stay_empty(translate, expected):
    lines = ["", LINES[0], "", "  ", LINES[1], ""]
    code, out, _ = translate(lines)
    assert code == 0
    assert out == ["", expected[0], "", "", expected[1], ""]


def test_empty_input(translate):
    code, lines, errors = translate(b"")
    assert (code, lines) == (0, [])
    assert "0 lines" in errors


def test_overlong_line_is_cut_with_a_warning(translate, expected):
    code, lines, errors = translate([LINES[0], "Y dijo Dios. " * 400, LINES[1]], "--max-length=40")
    assert code == 0
    assert len(lines) == 3 and lines[0] == expected[0] and lines[2] == expected[1]
    assert "warning: line 2" in errors and "cut" in errors


def test_invalid_utf8_is_an_error_after_the_lines_before_it(translate, expected):
    text = "\n".join(LINES[:2]).encode() + b"\nPadr\xe9 nuestro\n" + LINES[2].encode() + b"\n"
    code, lines, errors = translate(text)
    assert (code, lines) == (1, expected[:2])
    assert "line 3" in errors and "byte 5 is 0xe9" in errors and "iconv" in errors


def test_scores(translate, expected):
    _, lines, _ = translate(LINES, "--scores", "--quiet")
    assert [line.split("\t")[1] for line in lines] == expected
    assert all(float(line.split("\t")[0]) < 0 for line in lines)


def test_n_best_is_in_the_format_of_moses(translate, expected):
    _, lines, _ = translate(LINES[:2], "--n-best", "3", "--quiet")
    records = [line.split(" ||| ") for line in lines]
    assert [record[0] for record in records] == ["0"] * 3 + ["1"] * 3
    assert [records[0][1], records[3][1]] == expected[:2]
    scores = [float(record[2]) for record in records[:3]]
    assert scores == sorted(scores, reverse=True)


def test_json(translate, expected):
    options = ["--json", "--n-best", "2", "--quiet"]
    _, lines, _ = translate([*LINES[:2], ""], *options)
    records = [json.loads(line) for line in lines]
    assert [record["index"] for record in records] == [0, 1, 2]
    best, second = records[0]["hypotheses"]
    assert best["ended"] and best["final_score"] > second["final_score"] > best["score"]
    assert set(best) == {"text", "score", "final_score", "ended"}
    assert records[0]["steps"] > 0 and records[0]["expansions"] > records[0]["steps"]
    assert records[2] == {
        "index": 2,
        "hypotheses": [{"text": "", "score": 0.0, "final_score": 0.0, "ended": True}],
        "stop_reason": "empty_source",
        "steps": 0,
        "expansions": 0,
    }


def test_output_file(translate, expected, tmp_path):
    path = tmp_path / "out.txt"
    assert translate(LINES, "--output", str(path), "--quiet") == (0, [], "")
    assert path.read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_variable_beam_and_greedy_run(translate):
    options = ["--algorithm=variable", "--width=20", "--threshold=1.5", "--max-candidates=3"]
    assert all(translate(LINES, *options, "--row-budget=40", "--threads=2", "--quiet")[1])
    greedy = translate(LINES, "--algorithm=greedy", "--batch-tokens=50", "--quiet")[1]
    assert all(greedy)
    options = "--algorithm=hybrid-jacobi", "--block=4", "--horizon=9", "--quiet"
    assert translate(LINES, *options)[1] == greedy
    assert translate(LINES, "--algorithm=adaptive-jacobi", "--quiet")[1] == greedy


def test_processors(translate, expected):
    model, tokenizer = pybeam.load_model(MODEL), pybeam.load_tokenizer(MODEL)
    first, second = tokenizer.encode("And God")[:2]
    p = pybeam.processors
    chain = [
        p.no_unk(3),
        p.temperature(1.2),
        p.repetition_penalty(1.3),
        p.no_repeat_ngram(2),
        p.suppress_sequences([[first, second], [9]]),
        p.eos_penalty(0.9),
    ]
    search = pybeam.fixed_beam(5, processors=chain, scoring=pybeam.scoring.power(1.0))
    decoder = pybeam.Decoder(model, search)
    results = decoder.decode([tokenizer.encode(line) for line in LINES])
    wanted = [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
    options = ["--temperature=1.2", "--repetition-penalty=1.3", "--no-repeat-ngram=2", "--no-unk"]
    options += [f"--suppress={first},{second}", "--suppress=9", "--eos-penalty=0.9", "--quiet"]
    assert translate(LINES, *options) == (0, wanted, "")
    assert wanted != expected


def test_bfloat16_changes_few_words(translate, expected):
    lines = translate(LINES, "--dtype=bfloat16", "--quiet")[1]
    same = [a == b for a, b in zip(lines, expected, strict=True)]
    assert sum(same) >= len(LINES) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "--temperature"),
        (["--no-repeat-ngram", "0"], "--no-repeat-ngram"),
        (["--suppress", "the"], "token ids joined by commas"),
        (["--suppress", "1,-5"], "token ids joined by commas"),
        (["--suppress", "99999"], "--suppress"),
        (
            ["--threshold", "1.5"],
            "--threshold has no meaning with --algorithm fixed; it goes with var",
        ),
        (["--stop", "count", "--patience", "2"], "either --stop or --patience"),
        (
            ["--patience", "0.1", "--n-best", "5"],
            "--n-best must be at most round(patience * width)",
        ),
        (["--samples", "2", "--width", "3"], "--width has no meaning with --samples"),
        (
            ["--samples", "2", "--length-penalty", "1"],
            "--length-penalty has no meaning with --samples",
        ),
        (
            ["--algorithm", "sample", "--n-best", "2"],
            "--n-best has no meaning with --algorithm sample; --samples says how many",
        ),
        (
            ["--algorithm", "sample", "--length-penalty", "1"],
            "--length-penalty has no meaning with --algorithm sample",
        ),
        (["--top-k", "5"], "--top-k has no meaning with --algorithm fixed; it goes with sample"),
        (["--seed", "2"], "--seed has no meaning with --algorithm fixed; it goes with --samples"),
        (["--diversity-penalty", "1"], "--diversity-penalty needs --groups"),
        (
            ["--algorithm", "jacobi", "--groups", "2"],
            "--groups has no meaning with --algorithm jacobi",
        ),
        (["--length-penalty", "1", "--scoring", "raw"], "either --length-penalty or --scoring"),
        (["--length-penalty", "99"], "--length-penalty must be between -10 and 10"),
        (["--alignment"], "--alignment needs --json"),
        (["--recipe", "fairseq", "--stop", "end"], "--stop has no meaning with --recipe fairseq"),
        (["--recipe", "ctranslate2", "--width", "1"], "--width must be at least 2"),
        (["--recipe", "opennmt", "--n-best", "9"], "--n-best must be at most `beam_size` = 5"),
        (["--recipe-option", "beam=3"], "--recipe-option needs --recipe"),
        (["--recipe", "fairseq", "--recipe-option", "beam"], "NAME=VALUE"),
        (
            ["--recipe", "fairseq", "--recipe-option", "size=3"],
            "size is no option of --recipe fair",
        ),
        (["--recipe", "fairseq", "--recipe-option", "beam=0"], "--recipe fairseq: `nbest` must be"),
        (
            ["--recipe", "fairseq", "--recipe-option", "min_len=900"],
            "--recipe-option min_len must be",
        ),
        (["--recipe", "fireredasr", "--eos-penalty", "2"], "--eos-penalty must be more than 0"),
        (["--algorithm", "greedy", "--width", "3"], "--width has no meaning"),
        (["--algorithm", "greedy", "--n-best", "2"], "--n-best 2"),
        (["--algorithm", "jacobi", "--n-best", "2"], "--n-best 2"),
        (["--algorithm", "jacobi", "--block", "2"], "--block has no meaning"),
        (["--algorithm", "hybrid-jacobi", "--width", "2"], "--width has no meaning"),
        (["--n-best", "6"], "use --width 6"),
        (["--schedule", "batch", "--epsilon", "0.5"], "--epsilon has no meaning"),
        (["--flush", "9"], "--flush has no meaning with --schedule fifo"),
        (["--batch-size", "2", "--batch-tokens", "9"], "either --batch-size"),
        (["--scoring", "power"], "power:A"),
        (["--scoring", "gnmt:x"], "gnmt:x"),
        (["--scoring", "power:99"], "--scoring power:99 must be between -10 and 10"),
        (["--algorithm", "variable", "--local-threshold", "2"], "--local-threshold must be"),
        (["--min-length", "5", "--max-length", "5"], "--min-length must be less than"),
        (["--row-budget", "2"], "--row-budget must be"),
        (["--max-length", "100000"], "--max-length must be"),
        (["--temperature", "nan"], "--temperature must be finite, greater than 0, but is nan"),
        (["--repetition-penalty", "inf"], "--repetition-penalty must be finite"),
        (["--suppress", "99999999999"], "--suppress must hold token ids from 0 to 2**31 - 1"),
        (["--dtype", "float7"], "float7"),
        (["--cache-dtype", "int8"], "int8"),
        (["--width", "4097"], "4097"),
        (["--width", "3,0"], "one for each of the first steps"),
        (["--width", "3,,5"], "one for each of the first steps"),
        (["--width", "5,2", "--n-best", "3"], "--n-best 3 is more than --width 2"),
        (["--algorithm", "shrinking", "--width", "2,3"], "must be an int in this search"),
        (
            ["--recipe", "fairseq", "--width", "2,3"],
            "--width must be one number with --recipe fairseq",
        ),
        (["--beams", "3"], "--beams"),
    ],
)
def test_wrong_options_name_the_option(translate, options, message):
    code, lines, errors = translate(LINES, *options)
    assert (code, lines) == (2, [])
    assert message in errors


def test_a_language_for_a_model_without_languages(translate):
    code, lines, errors = translate(LINES, "--source-lang", "es")
    assert (code, lines) == (1, [])
    assert "--source-lang must be left out" in errors


def test_missing_files(capfd, tmp_path):
    assert main(["translate", "--model", str(tmp_path / "none")]) == 1
    assert "none" in capfd.readouterr().err
    absent = str(tmp_path / "absent.txt")
    assert main(["translate", "--model", str(MODEL), "--input", absent]) == 1
    assert "absent.txt: No such file" in capfd.readouterr().err


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capfd):
    """By the commands that load a model; an exported one needs onnxruntime."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "decoder.onnx").touch()
    for name in ("config.json", "sentencepiece.model"):
        shutil.copy(MODEL / name, tmp_path)
    for command in ("translate", "profile"):
        assert main([command, "--model", str(tmp_path)]) == 1
        assert "pip install 'pybeam-search[onnx]'" in capfd.readouterr().err


def test_output_must_not_be_the_input(translate, tmp_path):
    code, _, errors = translate(LINES, "--output", str(tmp_path / "in.txt"))
    assert code == 2 and "is the input" in errors
    assert (tmp_path / "in.txt").read_text(encoding="utf-8").split("\n")[:-1] == LINES


def test_a_full_disk_is_an_error(translate):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    code, _, errors = translate(LINES, "--output", "/dev/full")
    assert code == 1 and "cannot write the output" in errors


def test_a_line_that_fails_leaves_the_others(translate, expected, monkeypatch):
    encode = pybeam.load_tokenizer(MODEL).encode
    tokenizer = pybeam.load_tokenizer(MODEL)
    monkeypatch.setattr(
        type(tokenizer), "encode", lambda _, text: [10**6] if "rey dijo" in text else encode(text)
    )
    code, lines, errors = translate(LINES)
    assert (code, lines) == (1, [*expected[:2], "", expected[3]])
    assert "error: line 3" in errors


def test_describe_lines():
    assert describe_lines([0, 3, 4, 5, 9, 10]) == "line 1, lines 4-6, lines 10-11"


def test_info(capfd):
    assert main(["info"]) == 0
    text = capfd.readouterr().out
    headings = [line.split(" ", 1)[0] for line in text.splitlines() if not line.startswith(" ")]
    assert headings == [
        *("pybeam", "python", "system", "cpu", "memory", "torch", "packages", "threads"),
        *("devices", "backends", "openmp", "settings"),
    ]
    for word in ("reference: available", "native:", "numpy ", str(Path(pybeam.__file__).parent)):
        assert word in text


@pytest.mark.parametrize("has_name", [True, False])
def test_info_names_the_instruction_sets(has_name, monkeypatch):
    """ARM64 tells no name of a model."""
    lines = [*["model name\t: A processor"] * has_name, "Features\t: fp asimd asimddp i8mm"]
    monkeypatch.setattr(machine, "lines_of_proc", lambda name: lines)
    told = machine.cpu()
    assert told.endswith("(asimd asimddp i8mm)")
    assert (told == "1 x A processor (asimd asimddp i8mm)") == has_name


def test_info_lists_what_pybeam_needs():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", one)[0] for one in needed} - {"torch"}
    assert names <= set(PACKAGES)


def test_info_for_a_report_has_nothing_private(capfd, monkeypatch):
    monkeypatch.setenv("HOME", str(Path(pybeam.__file__).parents[2]))
    for name in ("PYBEAM_KEY", "PYBEAM_SERVE_API_KEYS"):
        monkeypatch.setenv(name, "a secret")
    assert main(["info", "--json"]) == 0
    text = capfd.readouterr().out
    told = json.loads(text)
    assert {"pybeam", "torch", "backends", "settings"} <= told.keys()
    assert "PYBEAM_KEY=(hidden)" in told["settings"] and "a secret" not in text
    listed = {one.partition(" ")[0] for one in told["packages"]}
    assert "numpy" in listed and ("fastapi" in listed) == (find_spec("fastapi") is not None)
    assert all(re.fullmatch(r"\d+\.\d GB in all, .* available", one) for one in told["memory"])
    assert f"~/{Path(pybeam.__file__).parents[1].name}/pybeam" in " ".join(told["pybeam"])
    assert str(Path.home()) not in text


def test_version(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"pybeam {pybeam.__version__}\n"


def test_help_teaches(capfd):
    assert main(["translate", "--help"]) == 0
    text = capfd.readouterr().out
    for phrase in ("Examples:", "Exit codes:", "--threshold NATS", "Pruning"):
        assert phrase in text


def test_translations_contain_the_phrases_beside_their_lines(translate, expected, tmp_path):
    phrases = tmp_path / "terms.txt"
    phrases.write_text("\nthere was\tcome to pass\n\n \t\n")
    code, lines, errors = translate(LINES, "--must-contain", str(phrases), "--quiet")
    assert (code, errors) == (0, "")
    assert lines[0::2] == expected[0::2] and lines[3] == expected[3]
    assert all(phrase in lines[1] for phrase in ("there was", "come to pass"))


def test_phrases_fail_with_their_line(translate, expected, tmp_path):
    phrases = tmp_path / "terms.txt"
    phrases.write_text("\n" + "abc " * 300 + "\n\n\n")
    code, lines, errors = translate(LINES, "--must-contain", str(phrases), "--quiet")
    assert (code, lines) == (1, [expected[0], "", *expected[2:]])
    assert "error: line 2: `max_length` must be at least" in errors
    phrases.write_text("\n")
    assert (
        "--must-contain ends before line 2" in translate(LINES, "--must-contain", str(phrases))[2]
    )
    code, _, errors = translate(LINES, f"--must-contain={phrases}", "--unit", "document")
    assert code != 0 and "cannot be combined with documents" in errors
