"""Where `pybeam transcribe` writes transcripts, segment by segment while they come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pybeam.cli.files import OrderedWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pybeam.speech.transcript import Segment, Transcript, TranscriptWriter
    from pybeam.speech.whisper import Progress


def stem_of(name: str) -> str:
    """Return the name of a recording's transcript, without the form."""
    return Path(name).stem


class OneLine:
    """Write a transcript as a line, whose words have one space between them."""

    def __init__(self) -> None:
        self._has_begun = self._has_space = False

    def more(self, segments: Sequence[Segment]) -> str:
        text = re.sub(r"\s+", " ", "".join(segment.text for segment in segments))
        words = text.strip(" ")
        if not words:
            self._has_space |= bool(text)
            return ""
        is_apart = self._has_begun and (self._has_space or text[0] == " ")
        self._has_begun, self._has_space = True, text[-1] == " "
        return f" {words}" if is_apart else words

    def end(self, transcript: Transcript) -> str:
        return "\n"


class LineWriter:
    """Write transcripts one behind the other, in the order of the recordings.

    Args:
        writer: writes texts in their order.
        form: of `format_transcript`; None: a line for each recording, which ends where it failed.
    """

    def __init__(self, writer: OrderedWriter, form: str | None) -> None:
        self._writer, self._form = writer, form
        self._open: dict[int, OneLine | TranscriptWriter] = {}

    def add(self, news: Progress) -> None:
        """Write what the news of a recording say, or hold it back until its turn comes."""
        from pybeam.speech.transcript import TranscriptWriter

        if news.error is not None:
            self._open.pop(news.index, None)
            self._writer.add(news.index, "" if self._form else "\n")
            return
        if news.index not in self._open:
            self._open[news.index] = TranscriptWriter(self._form) if self._form else OneLine()
        if news.transcript is None:
            self._writer.more(news.index, self._open[news.index].more(news.segments))
        else:
            text = self._open.pop(news.index).end(news.transcript)
            self._writer.add(news.index, text)


class FolderWriter:
    """Write each transcript into files of its own, which get their names when they are whole."""

    def __init__(self, folder: Path, names: tuple[str, ...], forms: tuple[str, ...]) -> None:
        self._folder, self._names, self._forms = folder, names, forms
        self._open: dict[int, list[_File]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, news: Progress) -> None:
        """Write what the news of a recording say. One that failed has no file."""
        if news.error is not None:
            self._drop(news.index)
            return
        if news.index not in self._open:
            stem = stem_of(self._names[news.index])
            paths = [(self._folder / f"{stem}.{form}", form) for form in self._forms]
            self._open[news.index] = [_File(*path) for path in paths]
        for file in self._open[news.index]:
            file.add(news)
        if news.transcript is not None:
            del self._open[news.index]

    def close(self) -> None:
        """Remove the files of transcripts that are not whole."""
        for index in list(self._open):
            self._drop(index)

    def _drop(self, index: int) -> None:
        for file in self._open.pop(index, []):
            file.drop()


class _File:
    """A file that has its name once it is whole."""

    def __init__(self, path: Path, form: str) -> None:
        from pybeam.speech.transcript import TranscriptWriter

        self._path, self._writer = path, TranscriptWriter(form)
        self._half = path.with_name(f"{path.name}.part")
        self._file: TextIO = self._half.open("w", encoding="utf-8")

    def add(self, news: Progress) -> None:
        if news.transcript is None:
            self._file.write(self._writer.more(news.segments))
            self._file.flush()
            return
        self._file.write(self._writer.end(news.transcript))
        self._file.close()
        self._half.replace(self._path)

    def drop(self) -> None:
        self._file.close()
        self._half.unlink(missing_ok=True)
