"""`pybeam retrieve` on the example model: a catalogue of lines, a saved one, filters, and what is wrong."""

import json

import pytest

import pybeam
from pybeam.cli import main
from support.paths import MODEL

VERSES = [
    "And God said, Let there be light: and there was light.",
    "The LORD is my shepherd; I shall not want.",
    "Jesus wept.",
    "And the king said.",
    "Jesus wept.",
]
QUERIES = ["Y lloró Jesús.", "", "Jehová es mi pastor; nada me faltará."]


@pytest.fixture
def retrieve(tmp_path, capfd):
    """Run `pybeam retrieve` in this process on `QUERIES`; returns exit code, records, stderr."""
    (tmp_path / "verses.txt").write_text("".join(f"{verse}\n" for verse in VERSES))
    (tmp_path / "queries.txt").write_text("".join(f"{query}\n" for query in QUERIES))

    def run(*options: str, catalogue: str = "verses.txt"):
        files = ["--catalogue", str(tmp_path / catalogue), "--input", str(tmp_path / "queries.txt")]
        options = [one.replace("FOLDER", str(tmp_path)) for one in options]
        code = main(["retrieve", "--model", str(MODEL), *files, "--quiet", *options])
        output = capfd.readouterr()
        return code, [json.loads(line) for line in output.out.splitlines()], output.err

    return run


def test_items_per_query(retrieve):
    code, records, errors = retrieve("--width", "8", "--n-best", "3")
    assert (code, errors) == (0, "")
    tokenizer = pybeam.load_tokenizer(MODEL)
    catalogue = pybeam.Catalogue.from_texts(VERSES, tokenizer)
    rule = pybeam.catalogue.allowed_items(catalogue)
    per_token = pybeam.scoring.power(1.0)
    search = pybeam.fixed_beam(8, n_best=3, scoring=per_token, processors=[rule])
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), search)
    results = decoder.decode([tokenizer.encode(query) if query else [] for query in QUERIES])
    for record, result in zip(records, results, strict=True):
        assert record["index"] == result.index
        assert record["has_all_items"] == result.has_all_items
        assert [tuple(h["items"]) for h in record["hypotheses"]] == [
            h.items for h in result.hypotheses
        ]
        assert [h["score"] for h in record["hypotheses"]] == [h.score for h in result.hypotheses]
    assert records[0]["hypotheses"][0] == records[0]["hypotheses"][0] | {
        "items": [2, 4],
        "text": "Jesus wept.",
    }
    assert records[1]["hypotheses"] == []
    assert records[2]["hypotheses"][0]["items"] == [1]


def test_a_saved_catalogue_gives_the_same(retrieve):
    _, expected, _ = retrieve("--save", "FOLDER/verses.safetensors")
    code, records, errors = retrieve(catalogue="verses.safetensors")
    assert (code, records, errors) == (0, expected, "")


def test_filters_and_other_probabilities(retrieve, tmp_path):
    _, plain, _ = retrieve()
    (tmp_path / "allow").write_text("0\n1\n2\n")
    (tmp_path / "deny").write_text("1\n")
    code, records, _ = retrieve("--allow", "FOLDER/allow", "--deny", "FOLDER/deny", "--renormalize")
    assert code == 0
    for record in (records[0], records[2]):
        assert {item for h in record["hypotheses"] for item in h["items"]} == {0, 2}
        assert record["has_all_items"]
    assert records[0]["hypotheses"][0]["score"] > plain[0]["hypotheses"][0]["score"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--n-best", "9", "--width", "8"], 2, "--n-best 9 is more than --width 8"),
        (["--save", "FOLDER/verses.bin"], 2, "must end in .safetensors"),
        (["--allow", "FOLDER/none"], 1, "none"),
        (["--allow", "FOLDER/verses.txt"], 1, "must be the number of an item"),
    ],
)
def test_what_is_wrong(retrieve, options, code, message):
    found, records, errors = retrieve(*options)
    assert (found, records) == (code, [])
    assert message in errors


def test_a_catalogue_that_is_none(retrieve, tmp_path):
    for content, name in ((b"", "empty.txt"), (b"x", "x.safetensors"), (b"a\n\nb\n", "gap.txt")):
        (tmp_path / name).write_bytes(content)
        code, _, errors = retrieve(catalogue=name)
        assert code == 1
        assert "at least one" in errors or "safetensors" in errors or "leave it out" in errors
