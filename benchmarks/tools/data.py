"""Builds the data sets of the benchmarks from the public corpora that they come from.

python -m benchmarks.tools.data [--from FILE ...] [--output .data]        (or `make data`)

Every download is pinned to a commit and checked, and so is every file that is made of it, so that all
machines measure on the same lines. Files that are there already are left alone. Without a network,
download the addresses that the error names by other means and pass the files with --from, in any order.

The translation pairs are verses of two Bibles that number their verses alike. `verses.json` is the split:
the numbers of the dev and test verses, counted from Genesis 1:1 = 0, in the order in which they stand in
the files. The example model was trained on other verses, and on none with one of these Spanish lines.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
# what this builds
OWN_DATA = ROOT / ".data"
# data that several checkouts share, in a folder beside them
SHARED_DATA = ROOT.parent / "shared" / "data"
SPLIT = Path(__file__).with_name("verses.json")
RAW = "https://raw.githubusercontent.com"
TIMEOUT_SECONDS = 60
BLOCK_BYTES = 1 << 16


def folder_with(path: str, given: Path | None = None) -> Path:
    """The data folder that has this file: `given`, or else the one that `make data` builds.

    Raises:
        FileNotFoundError: no folder has it; the message says how to get it.
    """
    folders = [given] if given else [OWN_DATA, SHARED_DATA]
    for folder in folders:
        if (folder / path).is_file():
            return folder
    looked = " nor in ".join(map(str, folders))
    raise FileNotFoundError(
        f"{path} is not in {looked}; `make data` downloads it, or pass --data DIR with {path}"
    )


class DataError(Exception):
    """A data set cannot be built; the message says why, and what to do."""


@dataclass(frozen=True)
class Source:
    """A public file. The members of an archive are checked, because servers pack it anew."""

    url: str
    sha256: str

    def digest(self, content: bytes) -> str:
        if not self.url.endswith(".tar.gz"):
            return hashlib.sha256(content).hexdigest()
        try:
            files = members(content)
        except tarfile.TarError:
            return "of no archive"
        total = hashlib.sha256()
        for name in sorted(files):
            total.update(name.encode() + b"\0" + files[name])
        return total.hexdigest()


@dataclass(frozen=True)
class DataSet:
    """Files made of sources: `make` takes the contents of the sources, and gives that of every file."""

    sources: tuple[Source, ...]
    sha256: dict[str, str]  # path -> of the finished file
    make: Callable[..., dict[str, bytes]]


def members(archive: bytes) -> dict[str, bytes]:
    """The JSON files of a .tar.gz, by their names without folders."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        return {
            PurePosixPath(member.name).name: files.extractfile(member).read()
            for member in files
            if member.isfile() and member.name.endswith(".json")
        }


def aligned(spanish: bytes, english: bytes) -> list[tuple[str, str, str]]:
    """(name, Spanish line, English line) of every verse, in the order of the books.

    Args:
        spanish: JSON, a list of books with `chapters`: lists of verses.
        english: a .tar.gz with `Books.json`, the names in order, and a file for each book.

    Raises:
        DataError: the two do not have the same books, chapters and verses.
    """
    books, files = json.loads(spanish.decode("utf-8-sig")), members(english)
    verses = []
    names = json.loads(files["Books.json"])
    _check_counts("books", books, names)
    for name, book in zip(names, books, strict=True):
        chapters = json.loads(files[f"{name.replace(' ', '')}.json"])["chapters"]
        _check_counts(f"chapters in {name}", book["chapters"], chapters)
        for theirs, lines in zip(chapters, book["chapters"], strict=True):
            chapter = f"{name} {theirs['chapter']}"
            _check_counts(f"verses in {chapter}", lines, theirs["verses"])
            for line, verse in zip(lines, theirs["verses"], strict=True):
                place = f"{chapter}:{verse['verse']}"
                verses.append((place, _one_line(line), _one_line(verse["text"])))
    return verses


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _check_counts(what: str, spanish: Sequence, english: Sequence) -> None:
    if len(spanish) != len(english):
        raise DataError(
            f"the two Bibles must have as many {what}, but have {len(spanish)} (Spanish) and "
            f"{len(english)} (English): they are not the editions that the split was made for"
        )


def split_verses(
    spanish: bytes, english: bytes, split: dict[str, list[int]] | None = None
) -> dict[str, bytes]:
    """`{dev,test}.{ref,es,en}`, a verse per line; `split` holds the numbers of their verses."""
    verses = aligned(spanish, english)
    files = {}
    for part, numbers in (split or json.loads(SPLIT.read_text())).items():
        columns = zip(*(verses[number] for number in numbers), strict=True)
        for language, lines in zip(("ref", "es", "en"), columns, strict=True):
            files[f"bible-es-en/{part}.{language}"] = "".join(f"{x}\n" for x in lines).encode()
    return files


def split_trees(archive: bytes) -> dict[str, bytes]:
    """`ptb/{train,test}.mrg` of nltk's sample: the files whose number ends in 0 are for the test."""
    parts = {"ptb/train.mrg": b"", "ptb/test.mrg": b""}
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        for name in sorted(files.namelist()):
            if name.endswith(".mrg"):
                parts[f"ptb/{'test' if name.endswith('0.mrg') else 'train'}.mrg"] += files.read(
                    name
                )
    return parts


def _as_it_is(path: str, url: str, sha256: str) -> DataSet:
    return DataSet((Source(url, sha256),), {path: sha256}, lambda content: {path: content})


BIBLE = "thiagobodruk/bible/13225a15fa5e3e3043495b0c82df56c3fdfeb7f4"
KING_JAMES = "aruljohn/Bible-kjv/archive/a9aa4e55afbb3e095f57e4b14cd1f22c5ee8d7c9"
TEXT_TO_SQL = "jkkummerfeld/text2sql-data/5050bad2309a93636ea4788d3660c9202bf11e0e"
TREEBANK = "UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb"
NLTK = "nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28"
GRAPH4NLP = "graph4ai/graph4nlp/c5b6513d72443837016b804ff3aad941fd29db92"
JOBS = "examples/pytorch/semantic_parsing/graph2seq/jobs/raw"
DATA_SETS = {
    "bible-es-en": DataSet(
        (
            Source(
                f"{RAW}/{BIBLE}/json/es_rvr.json",
                "e9e92797a5db6641bc95e69fad11f0df592ad21d1e79599fa650fef59f376932",
            ),
            Source(
                f"https://github.com/{KING_JAMES}.tar.gz",
                "786f0e624d9e7c7d99c9d85b52503b356e360ee4468fd1fb4c3661a853054ca1",
            ),
        ),
        {
            f"bible-es-en/{name}": sha256
            for name, sha256 in {
                "dev.ref": "51c61e5a6dee1388c101bd0fcdcc362d52c762f0cabc63b6dc2e4c69705b3957",
                "dev.es": "e5a5eb7dde7cc00476f9a70bf47c0f4f80aaf0d8280a00bd45e23a38d0a528b0",
                "dev.en": "f2daa3f363d0f427040019d9c8a3ba1ef83593b58fb1d4eccd60eada11edf541",
                "test.ref": "0ef061a7afd779b41612467e9fc7d2617865400daca810c732aae0b527282351",
                "test.es": "41c3bd17f4ecb57c8d2a37a1e87445274b6dccf3f09667254ce6b20db970e528",
                "test.en": "dd435a32ba5ab6eb4fcf7d73df3328f32c60f5645eeb8d3d1d123ed439c934a4",
            }.items()
        },
        split_verses,
    ),
    "geo": _as_it_is(
        "geo/geography-logic.json",
        f"{RAW}/{TEXT_TO_SQL}/data/non-sql-data/geography-logic.txt",
        "a2f0843204a2937f62940015868d99acd8f6c17b659144846a752b71feb20024",
    ),
    "atis": _as_it_is(
        "atis/atis-logic.txt",
        f"{RAW}/{TEXT_TO_SQL}/data/non-sql-data/atis-logic.txt",
        "448ebecb2748bfc29e735bc8502a22bbb3310299bb6ab5fc5524aecbef5cce33",
    ),
    "ud-ewt dev": _as_it_is(
        "ud-ewt/dev.conllu",
        f"{RAW}/{TREEBANK}/en_ewt-ud-dev.conllu",
        "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
    ),
    "ud-ewt test": _as_it_is(
        "ud-ewt/test.conllu",
        f"{RAW}/{TREEBANK}/en_ewt-ud-test.conllu",
        "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
    ),
    "jobs train": _as_it_is(
        "jobs/train.txt",
        f"{RAW}/{GRAPH4NLP}/{JOBS}/train.txt",
        "8b20b1671ceae4048828d21f8ad843a8fe5e9d6c3a0c08c4b290b4c8703144ed",
    ),
    "jobs test": _as_it_is(
        "jobs/test.txt",
        f"{RAW}/{GRAPH4NLP}/{JOBS}/test.txt",
        "dadd9dd1146ec793740ea4ac23ef58d090bf7368b16253e47d2207b0fbd25c1b",
    ),
    "ptb": DataSet(
        (
            Source(
                f"{RAW}/{NLTK}/packages/corpora/treebank.zip",
                "9da92d76c3666cfb6cddeaed0f7e86b344cce0f0928a286d439e555f19c37399",
            ),
        ),
        {
            "ptb/train.mrg": "afec9cb0537b9c03bc56a0576393522aa5150583baf8af31fb7d307f4b62db76",
            "ptb/test.mrg": "e6f835e72cf5b01b2dbd3088a2f03309d8882bdadbb06d89e5712504b27b6079",
        },
        split_trees,
    ),
}


def build(name: str, data_set: DataSet, folder: Path, given: Sequence[Path] = ()) -> bool:
    """Make the files of a data set in `folder` unless they are there; says whether it did.

    Raises:
        DataError: a source cannot be had, or is not the one that was pinned.
    """
    if all(_sha256(folder / path) == known for path, known in data_set.sha256.items()):
        return False
    files = data_set.make(*(_content(source, given) for source in data_set.sources))
    for path, content in files.items():
        found = hashlib.sha256(content).hexdigest()
        if found != data_set.sha256[path]:
            raise DataError(
                f"{name}: {path} would have the sha256 {found} instead of {data_set.sha256[path]}, so "
                "results on it could not be compared; please report this as a bug"
            )
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # under another name first, so that Ctrl-C cannot leave half a file
        unfinished = target.with_name(f".{target.name}.part")
        unfinished.write_bytes(content)
        unfinished.replace(target)
    return True


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _content(source: Source, given: Sequence[Path]) -> bytes:
    for path in given:
        content = path.read_bytes()
        if source.digest(content) == source.sha256:
            return content
    content = _downloaded(source.url)
    if source.digest(content) != source.sha256:
        raise DataError(
            f"{source.url} must have the sha256 {source.sha256}, but what arrived has "
            f"{source.digest(content)}; try again, or pass the right file with --from FILE"
        )
    return content


def _downloaded(url: str) -> bytes:
    parts = []
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            size = int(answer.headers.get("Content-Length") or 0) or None
            name = url.rpartition("/")[2]
            with tqdm(total=size, desc=name, unit="B", unit_scale=True, disable=None) as bar:
                while part := answer.read(BLOCK_BYTES):
                    parts.append(part)
                    bar.update(len(part))
    except (OSError, urllib.error.URLError) as error:
        raise DataError(
            f"cannot download {url}: {getattr(error, 'reason', error)}; "
            "download it by other means and pass the file with --from FILE"
        ) from error
    return b"".join(parts)


def _check_given(given: Sequence[Path]) -> None:
    """A file that no data set is made of is a mistake that would otherwise look like no network."""
    sources = [source for data_set in DATA_SETS.values() for source in data_set.sources]
    for path in given:
        if not path.is_file():
            raise DataError(f"--from {path}: there is no such file")
        content = path.read_bytes()
        if not any(source.digest(content) == source.sha256 for source in sources):
            wanted = "\n  ".join(source.url for source in sources)
            raise DataError(
                f"--from {path} must be one of these, but its sha256 differs:\n  {wanted}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--from",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        dest="given",
        metavar="FILE",
        help="files downloaded by hand",
    )
    parser.add_argument("--output", type=Path, default=OWN_DATA, metavar="DIR")
    options = parser.parse_args()
    errors = []
    try:
        _check_given(options.given)
        for name, data_set in DATA_SETS.items():
            try:
                was_built = build(name, data_set, options.output, options.given)
                print(f"{name}: {'done' if was_built else 'is there already'}")
            except DataError as error:
                errors.append(str(error))
    except DataError as error:
        errors.append(str(error))
    if errors:
        sys.exit("\n".join(errors))
    print(f"the benchmarks find the data in {options.output}")


if __name__ == "__main__":
    main()
