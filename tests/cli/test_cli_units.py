"""Lines that are translated in pieces: documents, protected texts, long sources."""

import json

import pytest

from pybeam.cli import main
from pybeam.text.units import at_most, chain, protected, sentences
from support.example_lines import LINES, translations
from support.paths import MODEL

pytest.importorskip("sentencex")

DOCUMENT = f"{LINES[0]}  {LINES[1]} {LINES[2]}"
TAGGED = ["<b>Jesús</b> lloró.", "Y el rey dijo {n}: {m}", "<br/>", LINES[0]]
TAGS = r"<[^>]*>|\{\w+\}"


@pytest.fixture
def translate(tmp_path, capfd):
    """Run `pybeam translate` on lines; returns exit code, lines of stdout, stderr."""

    def run(lines, *options: str):
        path = tmp_path / "in.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        code = main(["translate", f"--model={MODEL}", f"--input={path}", "--quiet", *options])
        output = capfd.readouterr()
        return code, output.out.split("\n")[:-1], output.err

    return run


def in_pieces(translate, lines, split):
    """Translate the texts of every line as lines of their own, and put them together."""
    templates = [split(line) for line in lines]
    texts = [text for template in templates for text in template.texts]
    code, output, _ = translate(texts)
    assert code == 0
    found = iter(output)
    return [template.fill([next(found) for _ in template.texts]) for template in templates]


@pytest.mark.parametrize("schedule", ["fifo", "streaming", "batch"])
def test_a_document_is_its_sentences_translated_one_by_one(translate, schedule):
    lines = [DOCUMENT, "", LINES[3], DOCUMENT]
    one, two, three, four = translations()
    document = f"{one}  {two} {three}"
    options = ("--unit=document", "--sentence-lang=es", "--schedule", schedule, "--batch-size=2")
    assert translate(lines, *options) == (0, [document, "", four, document], "")


@pytest.mark.slow
def test_documents_protected_texts_and_long_sources_together(translate, tokens):
    lines = [*TAGGED, f"{LINES[0]} <i>{LINES[3]}</i> {LINES[1]}"]
    split = chain([protected(TAGS), sentences("es"), at_most(8, tokens)])
    options = ("--unit=document", "--sentence-lang=es", "--max-source-length=8")
    code, output, errors = translate(lines, *options, "--long-sources=split", f"--protect={TAGS}")
    assert (code, errors) == (0, "")
    assert output == in_pieces(translate, lines, split)


@pytest.mark.slow
@pytest.mark.parametrize("cache", [[], ["--cache=9"]])
def test_a_corpus_in_parts_is_the_same(translate, tmp_path, cache):
    lines = [DOCUMENT, *TAGGED, "", DOCUMENT, LINES[3], TAGGED[0]]
    options = ("--unit=document", "--sentence-lang=es", f"--protect={TAGS}")
    code, expected, _ = translate(lines, *options)
    assert code == 0
    folder = tmp_path / "out"
    assert translate(lines, *options, f"--output-dir={folder}", "--part-lines=4", *cache)[0] == 0
    parts = sorted(folder.glob("part-*.txt"))
    assert len(parts) > 1
    assert "".join(part.read_text() for part in parts).splitlines() == expected


def test_every_protected_text_is_in_the_output(translate):
    code, output, _ = translate(TAGGED, "--protect=<[^>]*>", r"--protect=\{\w+\}")
    assert code == 0
    assert output[0].startswith("<b>Jesus</b> ")
    assert output[1].endswith(" {n}: {m}")
    assert output[2] == "<br/>"
    assert output == in_pieces(translate, TAGGED, protected(TAGS))


def test_lines_without_matches_are_translated_as_without_the_option(translate):
    lines = [*LINES, "", " ... ", DOCUMENT]
    assert translate(lines, "--protect=<[^>]*>") == translate(lines)


@pytest.fixture(scope="module")
def tokens():
    import pybeam

    tokenizer = pybeam.load_tokenizer(MODEL)
    return lambda text: len(tokenizer.encode(text))


def test_long_sources_are_cut(translate, tokens):
    code, output, errors = translate(LINES, "--max-source-length=12")
    assert code == 0
    assert "line 4: 20 tokens are more than the limit of 12; the line is cut" in errors
    assert output[2] == translations()[2] and output[3] != translations()[3]
    assert tokens(LINES[3]) == 20


def test_long_sources_are_split(translate, tokens):
    options = ("--max-source-length=12", "--long-sources=split")
    code, output, errors = translate(LINES, *options)
    assert (code, errors) == (0, "")
    assert output[2] == translations()[2]
    assert output == in_pieces(translate, LINES, at_most(12, tokens))


@pytest.mark.parametrize("more", [[], ["--protect=<[^>]*>"]])
def test_long_sources_are_skipped(translate, more):
    code, output, errors = translate(LINES, "--max-source-length=19", "--long-sources=skip", *more)
    assert (code, output) == (1, [*translations()[:3], ""])
    assert "line 4: 20 tokens are more than the limit of 19; the line is skipped" in errors


def test_a_skipped_line_in_json(translate):
    options = ("--max-source-length=19", "--long-sources=skip", "--json", "--alignment")
    code, output, _ = translate(LINES, *options)
    record = json.loads(output[3])
    assert code == 1
    assert record["hypotheses"] == [] and "20 tokens" in record["error"]


@pytest.mark.slow
def test_a_line_longer_than_the_model_reads_is_split(translate):
    line = "Y dijo Dios. " * 400
    code, output, errors = translate([line], "--long-sources=split")
    assert (code, errors) == (0, "")
    assert output[0].count("God") > 100


@pytest.mark.parametrize(
    "options, message",
    [
        (["--unit=document", "--json"], "--json cannot be combined with --unit document"),
        (["--protect=a", "--scores"], "--scores cannot be combined"),
        (
            ["--long-sources=split", "--n-best=2"],
            "several outputs for each line, scores and JSON cannot",
        ),
        (["--protect=("], "--protect must be a regular expression"),
        (["--max-source-length=9999"], "--max-source-length must be at most the model's limit of"),
    ],
)
def test_options_that_contradict_each_other(translate, options, message):
    code, _, errors = translate(LINES, *options)
    assert code == 2
    assert message in errors


def test_the_package_is_missing(translate, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencex", None)
    code, _, errors = translate(LINES, "--unit=document")
    assert code == 2
    assert "pip install 'pybeam-search[documents]'" in errors
