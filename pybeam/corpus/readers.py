"""Read lines from plain, gzip and Zstandard files, Parquet and JSON Lines, one file after another."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pybeam.corpus.manifest import InputFile
from pybeam.corpus.parts import CorpusError, Line, Unreadable

BOM = b"\xef\xbb\xbf"
# rows of a Parquet file that are in memory at once
ROWS = 8192
# compressed bytes that are unpacked at once
ZSTD_BYTES = 1 << 14
# a line as long as that is no line of text
MAX_LINE_BYTES = 1 << 26
# of such a line that are in memory at once
SKIPPED_BYTES = 1 << 20
# of files that a folder of recordings may hold
SOUNDS = (
    *(".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a"),
    *(".aac", ".wma", ".webm", ".mp4", ".mkv", ".mov"),
)
INSTALL = "install it with `pip install 'pybeam-search[corpus]'`"

Text = bytes | Unreadable


class Corpus:
    """Files as one stream of lines. Each iteration reads them from the beginning, a little at a time.

    The name of a file says how it is read: `.parquet` is Parquet, `.jsonl` and `.ndjson` are JSON Lines, and
    anything else is text with a line end behind every line. Text and JSON Lines may be compressed as `.gz`
    or `.zst`.

    Args:
        paths: the files, in order.
        targets: files with as many lines, which stand beside those of `paths`: for `Score` the translations,
            for `Translate` with phrases the phrases.
        column: the column of Parquet files, or the field of JSON Lines, that holds the text.
        target_column: for `Score`: one that holds the translation, in place of `targets`.

    Raises:
        CorpusError: a file does not exist or cannot be read, its format needs `column`, or a package is
            not installed.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        targets: Sequence[str] = (),
        column: str | None = None,
        target_column: str | None = None,
    ) -> None:
        if targets and target_column is not None:
            raise CorpusError("give the targets either as files or as a column, not as both")
        self._paths, self._targets = list(paths), list(targets)
        own = [column] if target_column is None else [column, target_column]
        self._columns: list[list[str | None]] = [own] + ([[column]] if targets else [])
        for path, columns in self._files():
            _check(path, columns)
        self.read_bytes = 0  # of the files, compressed as they are, by the latest iteration

    @property
    def files(self) -> list[InputFile]:
        """Sizes and times of the files as they are now."""
        return [InputFile.now(path) for path, _ in self._files()]

    @property
    def num_bytes(self) -> int:
        """The size of the files, compressed as they are."""
        return sum(file.size or 0 for file in self.files)

    def __iter__(self) -> Generator[Line, None, None]:
        """Yield the fields of every line.

        Raises:
            CorpusError: a file ends in the middle or is broken, it changed while it was read, or there
                are more lines on one side than on the other.
        """
        self.read_bytes = 0
        before = self.files
        sides = [self._side(side) for side in range(len(self._columns))]
        with ExitStack() as stack:
            for side in sides:
                stack.enter_context(closing(side))
            yield from sides[0] if len(sides) == 1 else _paired(*sides)
        for old, new in zip(before, self.files, strict=True):
            if old != new:
                raise CorpusError(
                    f"{old.name} was changed while it was read; start again when it is left alone"
                )

    def _files(self) -> Iterator[tuple[str, list[str | None]]]:
        for path in self._paths:
            yield path, self._columns[0]
        for path in self._targets:
            yield path, self._columns[-1]

    def _side(self, side: int) -> Generator[Line, None, None]:
        for path in self._targets if side else self._paths:
            yield from self._lines(path, self._columns[side])

    def _lines(self, path: str, columns: list[str | None]) -> Iterator[Line]:
        num = 0
        try:
            with open(path, "rb", buffering=0) as raw:
                counted = _Counted(raw, self)
                for line in READERS[_format(path).kind](path, counted, columns):
                    num += 1
                    yield line
        except _BROKEN as error:
            raise CorpusError(
                f"{path} cannot be read behind line {num:,}: {_reason(error)}", path=path
            ) from error


class Names(Corpus):
    """Names of recordings as a corpus, one per line."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__([])
        self._names = [os.fsencode(name) for name in names]

    @property
    def files(self) -> list[InputFile]:
        return [InputFile("names of recordings", sum(map(len, self._names)), 0)]

    def __iter__(self) -> Generator[Line, None, None]:
        self.read_bytes = 0
        for name in self._names:
            self.read_bytes += len(name)
            yield (name,)


def recordings_in(folder: str) -> list[str]:
    """Return the names of the sound files in a folder and the folders below it, sorted.

    Raises:
        CorpusError: there are none.
    """
    found = sorted(str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in SOUNDS)
    if not found:
        raise CorpusError(f"{folder} has no sound files, whose names end in {', '.join(SOUNDS)}")
    return found


class _Format(NamedTuple):
    kind: str
    compression: str  # "", ".gz" or ".zst"


def _format(path: str) -> _Format:
    name = os.path.basename(path).lower()
    compression = next((end for end in (".gz", ".zst") if name.endswith(end)), "")
    stem = name.removesuffix(compression)
    if stem.endswith(".parquet"):
        return _Format("parquet", compression)
    return _Format("json" if stem.endswith((".jsonl", ".ndjson")) else "text", compression)


def _check(path: str, columns: list[str | None]) -> None:
    """Raise CorpusError for what can be known before the first line is read."""
    if not Path(path).is_file():
        raise CorpusError(f"{path}: there is no such file")
    kind, compression = _format(path)
    if kind != "text" and None in columns:
        what = "column" if kind == "parquet" else "field"
        raise CorpusError(f"{path}: say which {what} holds the text, with --column NAME")
    if kind == "text" and columns != [None]:
        raise CorpusError(
            f"{path} is text, which has no columns; leave --column out, or name the file .jsonl"
        )
    if kind == "parquet":
        try:
            with _parquet(path) as table:
                names = table.schema_arrow.names
        except UnicodeError as error:
            raise CorpusError(f"{path} is no sound Parquet file: {error}", path=path) from error
        for column in columns:
            if column not in names:
                raise CorpusError(f"{path} has no column {column!r}, but {', '.join(names)}")
    elif compression == ".zst":
        _zstandard(path)


class _Counted(io.RawIOBase):
    """A file that tells its corpus how much of it has been read."""

    def __init__(self, file: BinaryIO, corpus: Corpus) -> None:
        self._file, self._corpus = file, corpus

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._corpus.read_bytes += num
        return int(num)


def _text_lines(path: str, file: io.RawIOBase, columns: list[str | None]) -> Iterator[Line]:
    for line in _raw_lines(path, file):
        yield (line,)


def _raw_lines(path: str, file: io.RawIOBase) -> Iterator[Text]:
    with _opened(path, file) as stream:
        is_first = True
        while line := stream.readline(MAX_LINE_BYTES):
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                yield _too_long(stream, len(line))
            else:
                yield (line.removeprefix(BOM) if is_first else line).removesuffix(b"\n")
            is_first = False


def _too_long(stream: io.BufferedIOBase, num_bytes: int) -> Unreadable:
    """Read a line to its end, of which `num_bytes` have been read, and keep nothing of it."""
    while rest := stream.readline(SKIPPED_BYTES):
        num_bytes += len(rest.removesuffix(b"\n"))
        if rest.endswith(b"\n"):
            break
    expected = f"expected a line of less than {MAX_LINE_BYTES:,} bytes"
    return Unreadable(f"{expected}, but found {num_bytes:,}; is this text?")


def _opened(path: str, file: io.RawIOBase) -> io.BufferedIOBase:
    compression = _format(path).compression
    if compression and not os.path.getsize(path):
        raise EOFError
    buffered = io.BufferedReader(file, 1 << 16)
    if compression == ".gz":
        return gzip.GzipFile(fileobj=buffered, mode="rb")
    if compression == ".zst":
        return io.BufferedReader(_Unzstd(buffered, _zstandard(path)), 1 << 16)
    return buffered


class _Unzstd(io.RawIOBase):
    """The content of a Zstandard file, which may have several frames.

    The package's own reader takes a frame that is cut for the end of the file.
    """

    def __init__(self, file: io.BufferedIOBase, zstandard: Any) -> None:
        self._file, self._zstandard = file, zstandard
        self._frame: Any = None
        self._given, self._rest = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._given:
            chunk = self._rest or self._file.read(ZSTD_BYTES)
            if not chunk and self._frame is not None:
                raise EOFError
            if not chunk:
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._given = self._frame.decompress(chunk)
            except self._zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
            self._rest = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        num = min(len(buffer), len(self._given))
        buffer[:num], self._given = self._given[:num], self._given[num:]
        return num


def _json_lines(path: str, file: io.RawIOBase, columns: list[str | None]) -> Iterator[Line]:
    for line in _raw_lines(path, file):
        if isinstance(line, Unreadable):
            yield tuple(line for _ in columns)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield tuple(Unreadable(f"not JSON: {error}") for _ in columns)
        else:
            yield tuple(_field(record, column) for column in columns)


def _field(record: Any, column: str | None) -> Text:
    if not isinstance(record, dict):
        return Unreadable(f"expected a JSON object, but found {type(record).__name__}")
    if column not in record:
        return Unreadable(f"the JSON object has no field {column!r}")
    return _as_text(record[column], f"the field {column!r}")


def _as_text(value: Any, what: str) -> Text:
    if not isinstance(value, str):
        found = "null" if value is None else type(value).__name__
        return Unreadable(f"expected text in {what}, but found {found}")
    # half of a surrogate pair is no text; the task says so
    return value.encode("utf-8", errors="surrogatepass")


def _parquet_lines(path: str, file: io.RawIOBase, columns: list[str | None]) -> Iterator[Line]:
    from pyarrow import ArrowException

    try:
        yield from _parquet_rows(path, file, columns)
    # some of these are of other kinds too, such as KeyError
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _parquet_rows(path: str, file: io.RawIOBase, columns: list[str | None]) -> Iterator[Line]:
    with _parquet(path) as table:
        names = [str(column) for column in columns]
        size, rows, done = os.path.getsize(path), max(1, table.metadata.num_rows), 0
        counted = file._corpus if isinstance(file, _Counted) else None
        for batch in table.iter_batches(ROWS, columns=list(dict.fromkeys(names))):
            values = [batch.column(name).to_pylist() for name in names]
            if counted is not None:
                counted.read_bytes += size * (done + len(batch)) // rows - size * done // rows
            done += len(batch)
            for row in zip(*values, strict=True):
                yield tuple(
                    _as_text(value, f"the column {name!r}")
                    for value, name in zip(row, names, strict=True)
                )


READERS: dict[str, Callable[[str, io.RawIOBase, list[str | None]], Iterator[Line]]] = {
    "text": _text_lines,
    "json": _json_lines,
    "parquet": _parquet_lines,
}


def _paired(sources: Iterator[Line], targets: Iterator[Line]) -> Iterator[Line]:
    num = 0
    for source in sources:
        target = next(targets, None)
        if target is None:
            raise CorpusError(f"the files beside it end before line {num + 1} of the input")
        num += 1
        yield (*source, *target)
    if next(targets, None) is not None:
        raise CorpusError(f"the input ends after line {num}, but the files beside it go on")


def _zstandard(path: str) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise CorpusError(f"{path} needs the package zstandard; {INSTALL}") from error
    return zstandard


def _parquet(path: str) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise CorpusError(f"{path} needs the package pyarrow; {INSTALL}") from error
    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise CorpusError(f"{path} is no sound Parquet file: {error}", path=path) from error


_BROKEN = (EOFError, OSError, ValueError, zlib.error)


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the file is cut in the middle; fetch it again"
    return str(error) or type(error).__name__
