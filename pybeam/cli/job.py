"""One run of `pybeam translate`, `score` or `transcribe`: files, model and decoder put together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import click

from pybeam.cli.sections import with_flags

if TYPE_CHECKING:
    from pybeam.cli.lines import Sources
    from pybeam.cli.output import Format, OrderedWriter
    from pybeam.cli.report import Report
    from pybeam.decoder import Decoder
    from pybeam.engine.schedule import Schedule
    from pybeam.search.algorithms import Algorithm
    from pybeam.speech import Transcription
    from pybeam.text.tokenizer import Tokenizer

MAX_COUNTED_BYTES = 1 << 28


@dataclass(frozen=True)
class Job:
    """What the command line asked for."""

    algorithm: Algorithm
    schedule: Schedule
    model_dirs: tuple[str, ...]
    input_path: str
    output_path: str
    source_lang: str | None
    target_lang: str | None
    threads: int | None
    device: str
    dtype: str
    backend: str
    has_scores: bool
    is_json: bool
    no_unk: bool
    quiet: bool

    wants_log_probs: ClassVar[bool] = False
    hears: ClassVar[bool] = False  # whether sources are sound
    item: ClassVar[str] = "line"

    def run(self) -> int:
        """Translate or transcribe everything; returns the exit code."""
        from pybeam.cli.output import OrderedWriter
        from pybeam.cli.report import Report

        with contextlib.ExitStack() as stack:
            input_file = stack.enter_context(self._input())
            decoder, tokenizer = self._load()
            output_file = stack.enter_context(open_output(self.output_path, input_file))
            report = Report(
                has_bar=not self.quiet and sys.stderr.isatty() and not output_file.isatty(),
                num_lines=count_lines(input_file),
                item=self.item,
            )
            stack.callback(report.close)
            options = tokenizer, decoder.model.max_positions, report.warn
            sources = stack.enter_context(self._sources(input_file, options))
            writer = OrderedWriter(output_file.fileno(), self._format(tokenizer.decode))
            return self._translate(decoder, sources, writer, report)

    def _input(self) -> contextlib.AbstractContextManager[BinaryIO]:
        return open_input(self.input_path)

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: tuple) -> Iterator[Sources]:
        from pybeam.cli.lines import LineReader, Sources

        yield Sources(LineReader(input_file.fileno()), *options)

    def _translate(
        self, decoder: Decoder, sources: Sources, writer: OrderedWriter, report: Report
    ) -> int:
        try:
            translate_all(decoder, sources, writer, report)
        except click.exceptions.Exit:  # nobody reads any more
            raise
        except BaseException:
            self._finish(sources, writer, report)
            raise
        self._finish(sources, writer, report)
        return 1 if report.has_failed else 0

    def _finish(self, sources: Sources, writer: OrderedWriter, report: Report) -> None:
        gaps = writer.finish("" if self.is_json or self.algorithm.n_best > 1 else "\n")
        report.close()
        if gaps:
            report.warn(f"interrupted; not finished: {describe_lines(gaps, self.item)}")
        if sources.error is not None:
            report.fail(sources.error)
        if not self.quiet:
            click.echo(report.summary(), err=True)

    def _load(self):
        import torch

        import pybeam
        from pybeam.text.tokenizer import load_tokenizer

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            model = pybeam.load_model(self.model_dirs, device=self.device, dtype=self.dtype)
            self._check(model)
            tokenizer = load_tokenizer(
                self.model_dirs[0], source_lang=self.source_lang, target_lang=self.target_lang
            )
            algorithm = self._whole_algorithm(tokenizer)
        except (ImportError, OSError, ValueError) as error:
            raise click.ClickException(with_flags(error)) from error
        try:
            decoder = pybeam.Decoder(
                model,
                algorithm,
                schedule=self.schedule,
                backend=self.backend,
                log_probs=self.wants_log_probs,
            )
        except ValueError as error:
            raise click.UsageError(with_flags(error)) from error
        return decoder, tokenizer

    def _check(self, model) -> None:
        if model.takes_features != self.hears:
            kind, command = ("text", "translate") if self.hears else ("sound", "transcribe")
            raise click.ClickException(
                f"the model in {self.model_dirs[0]} reads {kind}; use `pybeam {command}`"
            )

    def _whole_algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        """The algorithm with what the model's files say about it."""
        return self._without_unk(tokenizer) if self.no_unk else self.algorithm

    def _without_unk(self, tokenizer: Tokenizer) -> Algorithm:
        from pybeam import processors

        if tokenizer.unk_id is None:
            raise click.UsageError(
                f"--no-unk needs a tokenizer that has <unk>, but that of {self.model_dirs[0]} has none; "
                "leave it out"
            )
        chain = processors.no_unk(tokenizer.unk_id), *self.algorithm.processors
        return dataclasses.replace(self.algorithm, processors=chain)

    def _format(self, decode) -> Format:
        from pybeam.cli import output

        if self.is_json:
            return output.json_line(decode)
        if self.algorithm.n_best > 1:
            return output.n_best_lines(decode)
        return output.best_line(decode, self.has_scores)


@dataclass(frozen=True)
class TranscribeJob(Job):
    """A job whose sources are sound files."""

    paths: tuple[str, ...]
    language: str | None
    task: str | None

    hears: ClassVar[bool] = True
    item: ClassVar[str] = "file"

    @cached_property
    def _transcription(self) -> Transcription:
        from pybeam.speech import load_transcription

        return load_transcription(self.model_dirs[0], self.language, self.task)

    def _whole_algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        algorithm = super()._whole_algorithm(tokenizer)
        chain = *algorithm.processors, *self._transcription.processors
        return dataclasses.replace(algorithm, processors=chain)

    @contextlib.contextmanager
    def _input(self) -> Iterator[BinaryIO]:
        """The names of the files, one per line."""
        if not self.paths:
            with open_input(self.input_path) as file:
                yield file
            return
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"".join(os.fsencode(path) + b"\n" for path in self.paths))
            file.seek(0)
            yield file

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: tuple) -> Iterator[Sources]:
        from pybeam.cli.lines import LineReader
        from pybeam.cli.recordings import Recordings
        from pybeam.speech import load_feature_extractor

        try:
            extract = load_feature_extractor(self.model_dirs[0])
        except (ImportError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        reader = LineReader(input_file.fileno())
        yield Recordings(reader, *options, extract, self._transcription.prefix)


@dataclass(frozen=True)
class ScoreJob(Job):
    """A job whose outputs are given."""

    target_path: str

    wants_log_probs: ClassVar[bool] = True

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: tuple) -> Iterator[Sources]:
        from pybeam.cli.lines import LineReader, Pairs

        with open_input(self.target_path, "--target") as target_file:
            yield Pairs(LineReader(input_file.fileno()), LineReader(target_file.fileno()), *options)

    def _format(self, decode) -> Format:
        from pybeam.cli import output

        return output.score_json_line(decode) if self.is_json else output.score_line


def translate_all(
    decoder: Decoder, sources: Sources, writer: OrderedWriter, report: Report
) -> None:
    """Decode run after run of the input until it ends."""
    while not sources.has_ended:
        num_before = sources.num_lines
        try:
            for result in decoder.stream(sources.run()):
                result = dataclasses.replace(result, index=num_before + result.index)
                result = sources.complete(result)
                report.add(result)
                writer.add(result)
        finally:
            report.add_steps(decoder.stats.steps)


@contextlib.contextmanager
def open_input(path: str, flag: str = "--input") -> Iterator[BinaryIO]:
    """The file, or stdin for `-`."""
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb", buffering=0)
    except OSError as error:
        raise click.ClickException(f"{flag} {path}: {error.strerror}") from error
    with file:
        yield file


@contextlib.contextmanager
def open_output(path: str, input_file: BinaryIO) -> Iterator[BinaryIO]:
    """The file, or stdout for `-`. Raises UsageError if it is the input."""
    if path == "-":
        yield sys.stdout.buffer
        return
    if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(input_file.fileno())):
        raise click.UsageError(f"--output {path} is the input; write to another file")
    try:
        file = open(path, "wb", buffering=0)
    except OSError as error:
        raise click.ClickException(f"--output {path}: {error.strerror}") from error
    with file:
        yield file


def count_lines(file: BinaryIO) -> int | None:
    """Lines of a file of moderate size; None if that is unknown."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_COUNTED_BYTES:
        return None
    start = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    num_lines, last = 0, b"\n"
    while chunk := os.read(file.fileno(), 1 << 20):
        num_lines += chunk.count(b"\n")
        last = chunk[-1:]
    os.lseek(file.fileno(), start, os.SEEK_SET)
    return num_lines + (last != b"\n")


def describe_lines(indices: list[int], item: str = "line") -> str:
    """Line numbers from 1, neighbours joined: "line 4, lines 7-12"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][-1:] = [index]
        else:
            runs.append([index, index])
    return ", ".join(
        f"{item} {first + 1}" if first == last else f"{item}s {first + 1}-{last + 1}"
        for first, last in runs
    )
