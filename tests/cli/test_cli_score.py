"""`pybeam score` on the example model: what is written, in which order, and how it ends."""

import json
import subprocess
import sys

import pytest

import pybeam
from pybeam.cli import main
from support.paths import MODEL

SOURCES = [
    "Y dijo Dios: Sea la luz; y fué la luz.",
    "Jehová es mi pastor; nada me faltará.",
    "Y el rey dijo.",
]
TARGETS = [
    "And God said, Let there be light: and there was light.",
    "The LORD is my shepherd; I shall not want.",
    "And the king said.",
]


@pytest.fixture(scope="module")
def expected():
    """The scores of the library itself."""
    tokenizer = pybeam.load_tokenizer(MODEL)
    search = pybeam.greedy(scoring=pybeam.scoring.power(1.0))
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search)
    return decoder.score(
        [tokenizer.encode(line) for line in SOURCES],
        [tokenizer.encode_target(line) for line in TARGETS],
    )


def scores(results) -> list[str]:
    return [f"{result.hypotheses[0].final_score:.4f}" for result in results]


@pytest.fixture
def score(tmp_path, capfd):
    """Run `pybeam score` in this process on lines; returns exit code, stdout, stderr."""

    def run(sources, targets, *options: str, model=MODEL):
        paths = []
        for name, lines in (("in", sources), ("out", targets)):
            text = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
            paths.append(tmp_path / name)
            paths[-1].write_bytes(text)
        files = ["--input", str(paths[0]), "--target", str(paths[1])]
        code = main(["score", "--model", str(model), *files, *options])
        output = capfd.readouterr()
        return code, output.out.split("\n")[:-1], output.err

    return run


@pytest.mark.parametrize("schedule", ["fifo", "batch"])
def test_a_score_per_line(score, expected, schedule):
    options = "--schedule", schedule, "--batch-size", "2"
    code, lines, errors = score(SOURCES, TARGETS, *options)
    assert (code, lines) == (0, scores(expected))
    assert "3 lines in" in errors and "stopped by: target 3" in errors
    assert score(SOURCES, TARGETS, "--quiet") == (0, scores(expected), "")


def test_settings_of_the_folder_and_without_them(score, expected, tmp_path):
    """Its ban of repeated n-grams holds for a given output, too."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in MODEL.iterdir():
        (folder / path.name).symlink_to(path)
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text()) | {"no_repeat_ngram_size": 1}
    path.unlink()
    path.write_text(json.dumps(settings))
    code, lines, _ = score(SOURCES, TARGETS, "--quiet", model=folder)
    # "light" stands there twice
    assert code == 0 and lines[0] == "-inf"
    options = ("--quiet", "--without=no_repeat_ngram_size")
    assert score(SOURCES, TARGETS, *options, model=folder) == (0, scores(expected), "")
    raw = pybeam.load_model(folder)
    raw = pybeam.Decoder(raw.without(*raw.settings.names), pybeam.greedy())
    tokenizer = pybeam.load_tokenizer(folder)
    [result] = raw.score([tokenizer.encode(SOURCES[0])], [tokenizer.encode_target(TARGETS[0])])
    assert result.hypotheses[0].score == expected[0].hypotheses[0].score


def test_json(score, expected):
    code, lines, _ = score(SOURCES, TARGETS, "--json", "--quiet")
    assert code == 0
    for i, (line, result) in enumerate(zip(lines, expected, strict=True)):
        record, found = json.loads(line), result.hypotheses[0]
        assert (record["index"], record["text"]) == (i, TARGETS[i])
        assert record["score"] == pytest.approx(found.score, abs=1e-5)
        assert record["log_probs"] == pytest.approx(found.log_probs, abs=1e-5)
        assert record["final_score"] == pytest.approx(found.score / len(found.log_probs), abs=1e-5)


def test_translations_get_their_scores_again(score, tmp_path, capfd):
    (tmp_path / "in").write_text("\n".join(SOURCES))
    options = ["--model", str(MODEL), "--input", str(tmp_path / "in"), "--scores", "--quiet"]
    assert main(["translate", *options]) == 0
    pairs = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    _, lines, _ = score(SOURCES, [text for _, text in pairs], "--quiet")
    assert [float(x) for x in lines] == pytest.approx([float(x) for x, _ in pairs], abs=2e-4)


def test_empty_lines(score, expected):
    """Two empty lines are a pair of score 0; an empty source has no other output."""
    sources, targets = ["", SOURCES[0], "", SOURCES[2]], ["", TARGETS[0], "Amen.", TARGETS[2]]
    code, lines, errors = score(sources, targets)
    good = scores(expected)
    assert (code, lines) == (1, ["0.0000", good[0], "", good[2]])
    assert "error: line 3: `target` must be empty for an empty source" in errors
    assert json.loads(score(sources, targets, "--json")[1][2])["error"]
    code, lines, _ = score(SOURCES[:1], [""])
    assert code == 0 and float(lines[0]) < -3


def test_files_of_different_lengths(score, expected):
    code, lines, errors = score(SOURCES, TARGETS[:2])
    assert (code, lines) == (1, scores(expected)[:2])
    assert "error: --target ends before line 3 of the input" in errors
    code, lines, errors = score(SOURCES[:1], TARGETS)
    assert (code, lines) == (1, scores(expected)[:1])
    assert "error: the input ends after line 1, but --target goes on" in errors
    assert score([], [])[:2] == (0, [])


def test_what_is_not_utf8(score, expected):
    broken = f"\ufeff{TARGETS[0]}\r\n".encode() + b"caf\xe9\n"
    code, lines, errors = score(SOURCES[:2], broken)
    assert (code, lines) == (1, scores(expected)[:1])
    assert "line 2 of --target: expected UTF-8, but byte 4 is 0xe9" in errors


def test_overlong_lines(score):
    code, lines, errors = score(["Y dijo Dios. " * 400, SOURCES[0]], [TARGETS[0], "Amen. " * 400])
    assert code == 1 and lines[0] and not lines[1]
    assert "warning: line 1" in errors and "its score is that of a translation of" in errors
    assert "error: line 2: `target` with EOS and the prefix must be at most" in errors


def test_processors(score, expected):
    """The temperature changes the scores; the minus infinity of a forbidden token is written."""
    code, lines, _ = score(SOURCES, TARGETS, "--temperature", "0.5")
    assert code == 0
    assert all(x != y for x, y in zip(lines, scores(expected), strict=True))
    code, lines, _ = score(SOURCES[:1], [TARGETS[0] * 2], "--no-repeat-ngram", "2")
    assert (code, lines) == (0, ["-inf"])
    options = "--no-repeat-ngram", "2", "--json"
    record = json.loads(score(SOURCES[:1], [TARGETS[0] * 2], *options)[1][0])
    assert record["score"] is record["final_score"] is None
    assert None in record["log_probs"] and record["log_probs"][0] < 0


def test_ensembles(score, expected):
    code, lines, _ = score(SOURCES, TARGETS, "--model", str(MODEL))
    assert code == 0
    assert [float(x) for x in lines] == pytest.approx([*map(float, scores(expected))], abs=2e-4)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--input", "-", "--target", "-"], 2, "cannot both be stdin"),
        (["--target", "absent.txt", "--input", "in"], 1, "--target absent.txt: No such file"),
        (["--input", "in"], 2, "--target"),
        (["--input", "in", "--target", "in", "--scoring", "power"], 2, "power:A"),
        (["--input", "in", "--target", "in", "--width", "3"], 2, "--width"),
    ],
)
def test_wrong_options(options, code, message, tmp_path, monkeypatch, capfd):
    (tmp_path / "in").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["score", "--model", str(MODEL), *options]) == code
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_a_score_comes_out_before_the_input_ends(expected, tmp_path):
    (tmp_path / "out").write_text("\n".join(TARGETS))
    command = [sys.executable, "-m", "pybeam", "score", "--model", str(MODEL), "--quiet"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--target", str(tmp_path / "out")], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        for line, value in zip(SOURCES, scores(expected), strict=True):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == value + "\n"
        process.stdin.close()
        assert process.wait(timeout=120) == 0
        assert process.stderr.read() == b""
