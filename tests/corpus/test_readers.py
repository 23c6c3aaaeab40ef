"""Lines of plain, compressed, JSON and Parquet files."""

import gzip
import json
import sys
import tracemalloc

import pytest

from pybeam.corpus import Corpus, CorpusError, Unreadable, readers
from pybeam.corpus.readers import Names, recordings_in

TEXT = "uno\ndos\n\n tres \r\n¿cuatro?".encode()
LINES = [(b"uno",), (b"dos",), (b"",), (b" tres \r",), ("¿cuatro?".encode(),)]


@pytest.fixture
def write(tmp_path):
    def run(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return run


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


PACKED = {"a.txt": bytes, "b.es.gz": gzip.compress, "c.es.zst": zstd}


@pytest.mark.parametrize("name", PACKED)
def test_text(write, name):
    assert list(Corpus([write(name, PACKED[name](TEXT))])) == LINES
    assert list(Corpus([write(name, PACKED[name](b"\xef\xbb\xbf" + TEXT + b"\n"))])) == LINES


@pytest.mark.parametrize("name", list(PACKED)[1:])
def test_several_members(write, name):
    pack = PACKED[name]
    assert list(Corpus([write(name, pack(b"un") + pack(b"o\ndos\n"))])) == LINES[:2]


def test_several_files_are_one_input(write):
    paths = [
        write("a.txt", b"uno"),
        write("b.txt", b""),
        write("c.txt.gz", gzip.compress(b"dos\n")),
    ]
    corpus = Corpus(paths)
    assert list(corpus) == list(corpus) == LINES[:2]
    assert corpus.read_bytes == corpus.num_bytes


@pytest.mark.parametrize("cut", [0, 5, 200, -1])
@pytest.mark.parametrize("name", list(PACKED)[1:])
def test_a_file_that_is_cut_says_where(write, name, cut):
    import random

    text = "".join(f"{random.Random(i).random()}\n" for i in range(40)).encode()
    path = write(name, PACKED[name](text)[:cut])
    with pytest.raises(CorpusError, match=r"cannot be read behind line \d+: .*cut") as caught:
        list(Corpus([path]))
    assert caught.value.path == path


@pytest.mark.parametrize("name", list(PACKED)[1:])
def test_what_is_not_packed_at_all(write, name):
    with pytest.raises(CorpusError, match="cannot be read behind line 0"):
        list(Corpus([write(name, b"uno dos tres cuatro cinco")]))


@pytest.fixture
def short(monkeypatch):
    """Lines of 16 bytes are too long."""
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 16)
    monkeypatch.setattr(readers, "SKIPPED_BYTES", 4)


@pytest.mark.parametrize("end", [b"", b"\n", b"\ndos\n"])
@pytest.mark.parametrize("num", [15, 16, 17, 19, 20, 21])
def test_a_line_that_is_too_long_fails_alone(write, short, num, end):
    lines = list(Corpus([write("a.txt", b"uno\n" + b"x" * num + end)]))
    found = lines[1][0]
    if num < 16:
        assert found == b"x" * num
    else:
        assert found.reason == (
            f"expected a line of less than 16 bytes, but found {num}; is this text?"
        )
    assert [lines[0], *lines[2:]] == [(b"uno",)] + [(b"dos",)] * (len(end) > 1)


def test_a_record_that_is_too_long_fails_alone(write, short):
    path = write("a.jsonl", b'{"es": "%s"}\n{"es": "b"}\n' % (b"a" * 20))
    (first,), second = Corpus([path], column="es")
    assert "found 30" in first.reason and second == (b"b",)


def test_of_a_line_without_end_a_piece_is_kept(write, monkeypatch):
    most, num = 1 << 18, 1 << 24
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", most)
    monkeypatch.setattr(readers, "SKIPPED_BYTES", most)
    path = write("a.txt.gz", gzip.compress(b"x" * num + b"\ndos", 1))
    tracemalloc.start()
    try:
        (first,), second = Corpus([path])
        assert tracemalloc.get_traced_memory()[1] < num / 4
    finally:
        tracemalloc.stop()
    assert f"found {num:,}" in first.reason and second == (b"dos",)


def test_json_lines(write):
    records = [{"es": "uno"}, {"en": "two"}, {"es": 3}, {"es": None}, ["es"], {"es": "a\nb"}]
    text = "\n".join(map(json.dumps, records)) + "\n{\n"
    found = [
        field
        for (field,) in Corpus([write("a.jsonl.gz", gzip.compress(text.encode()))], column="es")
    ]
    assert found[0] == b"uno" and found[5] == b"a\nb"
    reasons = [field.reason for field in found if isinstance(field, Unreadable)]
    assert "no field 'es'" in reasons[0] and "found int" in reasons[1] and "null" in reasons[2]
    assert "found list" in reasons[3] and "not JSON" in reasons[4]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = {"es": ["uno", None, "tres"], "en": ["one", "two", "three"]}
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table(values), path)
    lines = list(Corpus([path], column="es", target_column="en"))
    assert lines[0] == (b"uno", b"one") and lines[2] == (b"tres", b"three")
    assert isinstance(lines[1][0], Unreadable) and lines[1][1] == b"two"
    corpus = Corpus([path], column="es")
    assert [line[0] for line in corpus][::2] == [b"uno", b"tres"]
    assert corpus.read_bytes >= corpus.num_bytes
    with pytest.raises(CorpusError, match="has no column 'de', but es, en"):
        Corpus([path], column="de")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match="no sound Parquet file"):
        Corpus([str(tmp_path / "b.parquet")], column="es")


def test_pairs(write):
    source, target = write("a", b"uno\ndos\n"), write("b", b"one\ntwo\n")
    assert list(Corpus([source], targets=[target])) == [(b"uno", b"one"), (b"dos", b"two")]
    with pytest.raises(CorpusError, match="files beside it end before line 2"):
        list(Corpus([source], targets=[write("c", b"one\n")]))
    with pytest.raises(CorpusError, match="ends after line 2, but the files beside it go on"):
        list(Corpus([source], targets=[write("d", b"one\ntwo\nthree\n")]))


def test_what_is_known_before_the_first_line(write, monkeypatch):
    with pytest.raises(CorpusError, match="no such file"):
        Corpus(["none.txt"])
    with pytest.raises(CorpusError, match="which field holds the text"):
        Corpus([write("a.jsonl", b"")])
    with pytest.raises(CorpusError, match="has no columns"):
        Corpus([write("a.txt", b"")], column="es")
    for package, name in (("zstandard", "a.zst"), ("pyarrow", "a.parquet")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(CorpusError, match=r"pip install 'pybeam-search\[corpus\]'"):
            Corpus([write(name, b"")], column=None if package == "zstandard" else "es")


def test_a_file_that_changes_while_it_is_read(write):
    path = write("a.txt", b"uno\ndos\n")
    lines = iter(Corpus([path]))
    next(lines)
    write("a.txt", b"uno\ndos\ntres\n")
    with pytest.raises(CorpusError, match="was changed while it was read"):
        list(lines)


def test_recordings(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.wav", "sub/a.WAV", "c.txt"):
        (tmp_path / name).touch()
    names = recordings_in(str(tmp_path))
    assert names == [str(tmp_path / "b.wav"), str(tmp_path / "sub" / "a.WAV")]
    assert list(Names(names)) == [(name.encode(),) for name in names]
    with pytest.raises(CorpusError, match=r"no sound files, whose names end in \.wav"):
        recordings_in(str(tmp_path / "none"))
