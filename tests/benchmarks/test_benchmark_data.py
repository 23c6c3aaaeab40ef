"""`make data` builds the lines of the benchmarks from files of the corpora's form, and says what is wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tools import data
from benchmarks.tools.data import DataError, DataSet, Source

SHARED = data.SHARED_DATA
SPLIT = {"dev": [3, 0], "test": [2]}
# two books; the second verse of Ruth has line breaks and two spaces
SPANISH = [
    {"abbrev": "gn", "chapters": [["En el principio.", "Y la tierra."], ["Y fueron acabados."]]},
    {"abbrev": "rt", "chapters": [["Y aconteció  en los\ndías."]]},
]
ENGLISH = {
    "Genesis": [["In the beginning", "And the earth"], ["Thus the heavens"]],
    "Ruth of Old": [["Now it came  to pass"]],
}
LINES = {
    "bible-es-en/dev.ref": "Ruth of Old 1:1\nGenesis 1:1\n",
    "bible-es-en/dev.es": "Y aconteció en los días.\nEn el principio.\n",
    "bible-es-en/dev.en": "Now it came to pass\nIn the beginning\n",
    "bible-es-en/test.ref": "Genesis 2:1\n",
    "bible-es-en/test.es": "Y fueron acabados.\n",
    "bible-es-en/test.en": "Thus the heavens\n",
}


def spanish(books: list = SPANISH) -> bytes:
    return b"\xef\xbb\xbf" + json.dumps(books, ensure_ascii=False).encode()


def english(books: dict = ENGLISH, level: int = 9) -> bytes:
    """An archive as GitHub makes them, all files in one folder."""
    files = {"Books.json": list(books), "README.md": "no data"}
    for name, chapters in books.items():
        files[f"{name.replace(' ', '')}.json"] = {
            "book": name,
            "chapters": [
                {
                    "chapter": str(c),
                    "verses": [{"verse": str(v), "text": t} for v, t in enumerate(verses, 1)],
                }
                for c, verses in enumerate(chapters, 1)
            ],
        }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            text = json.dumps(content).encode()
            info = tarfile.TarInfo(f"Bible-kjv-abc/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return gzip.compress(packed.getvalue(), level)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def small(tmp_path) -> DataSet:
    """A data set whose sources are files beside it."""
    sources = []
    for name, content in (("es.json", spanish()), ("en.tar.gz", english())):
        path = tmp_path / "web" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        source = Source(path.as_uri(), "")
        sources.append(replace(source, sha256=source.digest(content)))
    return DataSet(
        tuple(sources),
        {path: sha256(text.encode()) for path, text in LINES.items()},
        lambda *contents: data.split_verses(*contents, SPLIT),
    )


def test_verses_are_split_by_their_numbers(small, tmp_path):
    folder = tmp_path / "data"
    assert data.build("small", small, folder)
    assert {path: (folder / path).read_text("utf-8") for path in LINES} == LINES
    assert {path.name for path in (folder / "bible-es-en").iterdir()} == {
        Path(path).name for path in LINES
    }


def test_a_second_run_changes_nothing_and_mends_what_is_broken(small, tmp_path):
    data.build("small", small, tmp_path)
    times = [(tmp_path / path).stat().st_mtime_ns for path in LINES]
    assert not data.build("small", small, tmp_path)
    assert [(tmp_path / path).stat().st_mtime_ns for path in LINES] == times
    (tmp_path / "bible-es-en/dev.es").write_text("half a fi")
    assert data.build("small", small, tmp_path)
    assert (tmp_path / "bible-es-en/dev.es").read_text("utf-8") == LINES["bible-es-en/dev.es"]


def test_an_archive_that_was_packed_anew_is_the_same(small):
    assert english(level=1) != english()
    source = small.sources[1]
    assert source.digest(english(level=1)) == source.sha256
    changed = english({**ENGLISH, "Ruth of Old": [["Now it came to pas"]]})
    assert source.digest(changed) != source.sha256
    assert source.digest(b"<html>") == "of no archive"


def test_without_a_network_the_error_names_the_remedy(small, tmp_path):
    gone = replace(small.sources[0], url=(tmp_path / "gone" / "es.json").as_uri())
    without = replace(small, sources=(gone, small.sources[1]))
    with pytest.raises(DataError, match=r"cannot download file://.*/es.json: .*--from FILE"):
        data.build("small", without, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    given = [tmp_path / "web" / "en.tar.gz", tmp_path / "web" / "es.json"]
    assert data.build("small", without, tmp_path / "data", given)


def test_another_download_is_refused(small, tmp_path):
    (tmp_path / "web" / "es.json").write_bytes(b"[]")
    with pytest.raises(DataError, match=r"must have the sha256 .* but what arrived has 4f53cda1"):
        data.build("small", small, tmp_path / "data")


def test_other_lines_are_refused(small, tmp_path):
    wrong = replace(small, sha256=small.sha256 | {"bible-es-en/dev.es": "0" * 64})
    with pytest.raises(DataError, match=r"dev\.es would have the sha256"):
        data.build("small", wrong, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_bibles_that_number_otherwise_are_refused():
    fewer = {**ENGLISH, "Genesis": [["In the beginning"], ["Thus the heavens"]]}
    message = r"as many verses in Genesis 1, but have 2 \(Spanish\) and 1 \(English\)"
    with pytest.raises(DataError, match=message):
        data.aligned(spanish(), english(fewer))


def test_files_of_trees_are_split_by_the_end_of_their_number():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in ("0010", "0002", "0001"):
            archive.writestr(f"treebank/combined/wsj_{number}.mrg", f"(S {number})\n")
        archive.writestr("treebank/README", "no trees")
    trees = {"ptb/train.mrg": b"(S 0001)\n(S 0002)\n", "ptb/test.mrg": b"(S 0010)\n"}
    assert data.split_trees(packed.getvalue()) == trees


def test_a_file_that_nothing_is_made_of_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "es_rvr.json"
    path.write_bytes(spanish())
    monkeypatch.setattr(sys, "argv", ["data", "--from", str(path), "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"es_rvr.json must be one of these(.|\n)*es_rvr.json"):
        data.main()


def test_the_split_has_every_verse_once():
    split = json.loads(data.SPLIT.read_text())
    numbers = [*split["dev"], *split["test"]]
    assert (len(split["dev"]), len(split["test"])) == (694, 1486)
    assert len(set(numbers)) == len(numbers)
    assert 0 <= min(numbers) and max(numbers) < 31102


FILES = [(path, known) for one in data.DATA_SETS.values() for path, known in one.sha256.items()]


@pytest.mark.parametrize(("path", "known"), FILES, ids=[path for path, _ in FILES])
def test_files_that_are_there_are_those_that_are_built(path, known):
    folders = [f for f in (data.OWN_DATA, SHARED) if (f / path).is_file()]
    if not folders:
        pytest.skip(f"{path} is not there: `make data`")
    for folder in folders:
        assert sha256((folder / path).read_bytes()) == known


def test_benchmarks_take_the_data_that_is_there(tmp_path, monkeypatch):
    own, shared = tmp_path / "own", tmp_path / "shared"
    monkeypatch.setattr(data, "OWN_DATA", own)
    monkeypatch.setattr(data, "SHARED_DATA", shared)
    with pytest.raises(FileNotFoundError, match=r"a/b.txt is not in .*own nor in .*`make data`"):
        data.folder_with("a/b.txt")
    for folder in (shared, own):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "b.txt").write_text("")
        assert data.folder_with("a/b.txt") == folder
    with pytest.raises(FileNotFoundError, match=r"pass --data DIR with a/b.txt"):
        data.folder_with("a/b.txt", tmp_path)
