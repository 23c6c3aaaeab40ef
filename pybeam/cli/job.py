"""One run of `pybeam translate`, `score` or `transcribe`: sources in, results out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import click

from pybeam.cli.files import count_lines, open_input, open_output
from pybeam.cli.loading import Setup
from pybeam.cli.options.errors import as_failures

if TYPE_CHECKING:
    from pybeam.cli.output import Decode, Format, OrderedWriter, Pieces
    from pybeam.cli.progress import Progress
    from pybeam.cli.sources import Sources
    from pybeam.decoder import Decoder
    from pybeam.search.algorithms import Algorithm
    from pybeam.speech import Transcription
    from pybeam.text.tokenizer import Tokenizer

    # arguments that all `Sources` take: the tokenizer, the model's limit, and a function that warns
    SourceOptions = tuple[Tokenizer, int | None, Callable[[str], None]]


@dataclass(frozen=True)
class Job:
    """One run of `pybeam translate`: lines of text in, translations out. Options beside those of `setup`."""

    setup: Setup
    input_path: str
    output_path: str
    has_scores: bool
    is_json: bool
    has_alignment: bool
    quiet: bool

    wants_log_probs: ClassVar[bool] = False
    takes_sound: ClassVar[bool] = False
    item: ClassVar[str] = "line"

    def run(self) -> int:
        """Translate or transcribe everything; returns the exit code."""
        from pybeam.cli.output import OrderedWriter
        from pybeam.cli.progress import Progress

        with contextlib.ExitStack() as stack:
            input_file = stack.enter_context(self._input())
            tokenizer = self.setup.load_tokenizer()
            algorithm = self._algorithm(tokenizer)
            decoder = self._decoder(algorithm)
            output_file = stack.enter_context(open_output(self.output_path, input_file))
            progress = Progress(
                has_bar=not self.quiet and sys.stderr.isatty() and not output_file.isatty(),
                num_lines=count_lines(input_file),
                item=self.item,
            )
            stack.callback(progress.close)
            options: SourceOptions = tokenizer, decoder.model.max_positions, progress.warn
            sources = stack.enter_context(self._sources(input_file, options))
            format_result = self._format(tokenizer.decode, writes_many(algorithm))
            writer = OrderedWriter(output_file.fileno(), format_result)
            missing = "" if self.is_json or writes_many(algorithm) else "\n"
            return self._translate(decoder, sources, writer, progress, missing)

    def _input(self) -> contextlib.AbstractContextManager[BinaryIO]:
        return open_input(self.input_path)

    def _algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        return self.setup.build_algorithm(tokenizer)

    def _decoder(self, algorithm: Algorithm) -> Decoder:
        model = self.setup.load_model()
        if model.takes_features != self.takes_sound:
            kind, command = ("text", "translate") if self.takes_sound else ("sound", "transcribe")
            raise click.ClickException(
                f"the model in {self.setup.first_dir} reads {kind}; use `pybeam {command}`"
            )
        return self.setup.build_decoder(
            model, algorithm, log_probs=self.wants_log_probs, alignment=self.has_alignment
        )

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: SourceOptions) -> Iterator[Sources]:
        from pybeam.cli.sources import LineReader, Sources

        yield Sources(LineReader(input_file.fileno()), *options)

    def _translate(
        self,
        decoder: Decoder,
        sources: Sources,
        writer: OrderedWriter,
        progress: Progress,
        missing: str,
    ) -> int:
        try:
            translate_all(decoder, sources, writer, progress)
        # the reader of the output has gone
        except click.exceptions.Exit:
            raise
        except BaseException:
            self._finish(sources, writer, progress, missing)
            raise
        self._finish(sources, writer, progress, missing)
        return 1 if progress.has_failed else 0

    def _finish(
        self, sources: Sources, writer: OrderedWriter, progress: Progress, missing: str
    ) -> None:
        gaps = writer.finish(missing)
        progress.close()
        if gaps:
            progress.warn(f"interrupted; not finished: {describe_lines(gaps, self.item)}")
        if sources.error is not None:
            progress.fail(sources.error)
        if not self.quiet:
            click.echo(progress.summary(), err=True)

    def _format(self, decode: Decode, has_many: bool) -> Format:
        from pybeam.cli import output

        if self.is_json:
            return output.json_line(decode, self._pieces() if self.has_alignment else None)
        return (
            output.n_best_lines(decode) if has_many else output.best_line(decode, self.has_scores)
        )

    def _pieces(self) -> Pieces:
        """Return the texts of source ids and target ids."""
        from pybeam.text.tokenizer import load_vocabularies

        with as_failures():
            source, target = load_vocabularies(self.setup.first_dir) or ({}, {})
        return {i: piece for piece, i in source.items()}, {i: piece for piece, i in target.items()}


@dataclass(frozen=True)
class TranscribeJob(Job):
    """One run of `pybeam transcribe`: sound files in, transcriptions out."""

    paths: tuple[str, ...]
    language: str | None
    task: str | None

    takes_sound: ClassVar[bool] = True
    item: ClassVar[str] = "file"

    @cached_property
    def _transcription(self) -> Transcription:
        from pybeam.speech import load_transcription

        with as_failures():
            return load_transcription(self.setup.first_dir, self.language, self.task)

    def _algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        return self.setup.build_algorithm(tokenizer, self._transcription.processors)

    @contextlib.contextmanager
    def _input(self) -> Iterator[BinaryIO]:
        """The names of the files, one per line."""
        if not self.paths:
            with open_input(self.input_path) as file:
                yield file
            return
        with tempfile.TemporaryFile(buffering=0) as names:
            names.write(b"".join(os.fsencode(path) + b"\n" for path in self.paths))
            names.seek(0)
            yield names

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: SourceOptions) -> Iterator[Sources]:
        from pybeam.cli.recordings import Recordings
        from pybeam.cli.sources import LineReader
        from pybeam.speech import load_feature_extractor

        with as_failures():
            extract = load_feature_extractor(self.setup.first_dir)
        reader = LineReader(input_file.fileno())
        yield Recordings(reader, *options, extract, self._transcription.prefix)


@dataclass(frozen=True)
class ScoreJob(Job):
    """One run of `pybeam score`: pairs of lines in, scores out."""

    target_path: str

    wants_log_probs: ClassVar[bool] = True

    @contextlib.contextmanager
    def _sources(self, input_file: BinaryIO, options: SourceOptions) -> Iterator[Sources]:
        from pybeam.cli.sources import LineReader, Pairs

        with open_input(self.target_path, "--target") as target_file:
            yield Pairs(LineReader(input_file.fileno()), LineReader(target_file.fileno()), *options)

    def _format(self, decode: Decode, has_many: bool) -> Format:
        from pybeam.cli import output

        return output.score_json_line(decode) if self.is_json else output.score_line


def writes_many(algorithm: Algorithm) -> bool:
    """Whether several hypotheses are written per source."""
    return algorithm.n_best * algorithm.num_groups > 1


def translate_all(
    decoder: Decoder, sources: Sources, writer: OrderedWriter, progress: Progress
) -> None:
    """Decode the input, one run after another, until it ends."""
    while not sources.has_ended:
        num_before = sources.num_lines
        try:
            for result in decoder.stream(sources.run()):
                result = dataclasses.replace(result, index=num_before + result.index)
                whole = sources.complete(result)
                if whole is not None:
                    progress.add(whole)
                    writer.add(whole)
        finally:
            progress.add_steps(decoder.stats.steps)


def describe_lines(indices: list[int], item: str = "line") -> str:
    """Write line numbers from 1, with neighbours joined: "line 4, lines 7-12"."""
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
