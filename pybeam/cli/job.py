"""One run of `pybeam translate`, `score` or `transcribe`: lines in, texts out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from pybeam.cli import signals
from pybeam.cli.files import count_lines, open_input, open_output
from pybeam.cli.loading import Setup
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.corpus import CorpusOptions
from pybeam.cli.options.errors import as_failures, as_usage_errors
from pybeam.cli.options.sections import take

if TYPE_CHECKING:
    from pybeam.cli.output import OrderedWriter
    from pybeam.cli.progress import Progress
    from pybeam.cli.sources import Lines
    from pybeam.corpus import Corpus, Form, Job, Task, Worker
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Command:
    """The options of a command line, as one value.

    Attributes:
        setup: models, search and device.
        files: what is read and written.
        task: what a line is.
        form: what is written.
        corpus: how a corpus is decoded in parts.
        options: all options as they were given, by name.
        quiet: whether only errors and warnings are said.
    """

    setup: Setup
    files: Files
    task: Task
    form: Form
    corpus: CorpusOptions
    options: Mapping[str, Any]
    quiet: bool

    @classmethod
    def take(
        cls,
        options: Mapping[str, Any],
        values: dict[str, Any],
        algorithm: AlgorithmOptions,
        files: type[Files],
        task: Task,
    ) -> Command:
        """Take what is left in the `values` of a command line. `options` are all, as they were given.

        Raises UsageError for options that contradict each other.
        """
        from pybeam.corpus import Form

        setup = Setup.take(algorithm, values)
        values.setdefault("target_column", None)
        names = [field.name for field in dataclasses.fields(Form)]
        form = Form(**{name: values.pop(name) for name in names if name in values})
        chosen, quiet = take(CorpusOptions, values), values.pop("quiet")
        return cls(setup, files(**values), task, form, chosen, options, quiet)

    def run(self) -> int:
        """Decode everything; returns the exit code."""
        self.corpus.check()
        if self.corpus.output_dir is None:
            return self._run_stream()
        from pybeam.cli.corpus import run_corpus

        self.files.check_corpus()
        tokenizer = self.setup.load_tokenizer()
        job = self._job(self._algorithm(tokenizer))
        with as_failures():
            lines = self.files.corpus(self.corpus)
        with signals.ending_in_order():
            return run_corpus(job, lines, self.corpus, has_progress=not self.quiet)

    def _run_stream(self) -> int:
        from pybeam.cli.output import OrderedWriter
        from pybeam.cli.progress import Progress
        from pybeam.corpus.tasks import writes_many

        with contextlib.ExitStack() as stack:
            input_file = stack.enter_context(self.files.input())
            tokenizer = self.setup.load_tokenizer()
            algorithm = self._algorithm(tokenizer)
            worker = self._worker(tokenizer, algorithm)
            output_file = stack.enter_context(open_output(self.files.output_path, input_file))
            progress = Progress(
                has_bar=not self.quiet and sys.stderr.isatty() and not output_file.isatty(),
                num_lines=count_lines(input_file),
                item=self.task.item,
            )
            stack.callback(progress.close)
            lines = stack.enter_context(self.files.lines(input_file))
            stream = Stream(
                worker,
                lines,
                OrderedWriter(output_file.fileno()),
                progress,
                is_numbered=self.form.is_json or writes_many(algorithm),
                has_summary=not self.quiet,
            )
            stack.enter_context(signals.ending_in_order())
            return stream.run()

    def _algorithm(self, tokenizer: Tokenizer) -> Algorithm:
        with as_failures():
            processors = self.task.processors(self.setup.first_dir)
        return self.setup.build_algorithm(tokenizer, processors)

    def _job(self, algorithm: Algorithm) -> Job:
        from pybeam.cli.corpus import compared
        from pybeam.corpus import Job

        setup = self.setup
        return Job(
            setup.model_dirs,
            algorithm,
            self.task,
            self.form,
            setup.schedule,
            setup.device.device,
            setup.device.dtype,
            setup.device.cross_cache_dtype,
            setup.device.backend,
            setup.device.threads,
            setup.source_lang,
            setup.target_lang,
            self.corpus.cache or 0,
            compared(self.options),
            setup.device.check_finite,
            setup.algorithm.processors.without,
        )

    def _worker(self, tokenizer: Tokenizer, algorithm: Algorithm) -> Worker:
        """Return a worker that reads few lines ahead, so that texts come out soon and steadily."""
        schedule = dataclasses.replace(self.setup.schedule, window=2 * self.setup.schedule.n)
        job = dataclasses.replace(self._job(algorithm), schedule=schedule)
        with as_failures():
            model = job.load()
        with as_usage_errors():
            return job.worker(model, tokenizer)


@dataclass(frozen=True)
class Files:
    """What `pybeam translate` reads and writes."""

    input_paths: tuple[str, ...]
    output_path: str

    def check_corpus(self) -> None:
        """Raise UsageError for files that a run in parts cannot have."""
        if self.output_path != "-":
            raise click.UsageError("give either --output or --output-dir, not both")
        if "-" in self.input_paths:
            raise click.UsageError(
                "--output-dir needs --input FILE, which is read again when the run goes on after a kill; "
                "stdin cannot be"
            )

    def corpus(self, options: CorpusOptions) -> Corpus:
        """Return the lines of a run in parts."""
        from pybeam.corpus import Corpus

        return Corpus(self.input_paths, column=options.column)

    def input(self) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open the input of a run that is no corpus."""
        if len(self.input_paths) > 1:
            raise click.UsageError(
                "several --input need --output-dir; or join the files with `cat`"
            )
        return open_input(self.input_paths[0])

    @contextlib.contextmanager
    def lines(self, input_file: BinaryIO) -> Iterator[Lines]:
        """Return the lines of the open input."""
        from pybeam.cli.sources import LineReader, Lines

        yield Lines(LineReader(input_file.fileno()))


@dataclass(frozen=True)
class PairFiles(Files):
    """What `pybeam score` reads and writes."""

    target_paths: tuple[str, ...]

    def check_corpus(self) -> None:
        super().check_corpus()
        if "-" in self.target_paths:
            raise click.UsageError("--output-dir needs --target FILE; stdin cannot be read again")

    def corpus(self, options: CorpusOptions) -> Corpus:
        from pybeam.corpus import Corpus

        return Corpus(
            self.input_paths,
            targets=self.target_paths,
            column=options.column,
            target_column=options.target_column,
        )

    @contextlib.contextmanager
    def lines(self, input_file: BinaryIO) -> Iterator[Lines]:
        from pybeam.cli.sources import LineReader, Lines

        if len(self.target_paths) != 1:
            raise click.UsageError("give one --target FILE; several need --output-dir")
        with open_input(self.target_paths[0], "--target") as target_file:
            yield Lines(LineReader(input_file.fileno()), LineReader(target_file.fileno()))


@dataclass(frozen=True)
class RecordingFiles(Files):
    """What `pybeam transcribe` reads and writes: recordings, or files that name them."""

    names: tuple[str, ...]

    def check_corpus(self) -> None:
        if not self.names:
            super().check_corpus()
        elif self.output_path != "-":
            raise click.UsageError("give either --output or --output-dir, not both")

    def corpus(self, options: CorpusOptions) -> Corpus:
        from pybeam.corpus.readers import Corpus, Names

        if self.names:
            return Names(self.names)
        return Corpus(self.input_paths, column=options.column)

    @contextlib.contextmanager
    def input(self) -> Iterator[BinaryIO]:
        """The names of the files, one per line."""
        if not self.names:
            with super().input() as file:
                yield file
            return
        with tempfile.TemporaryFile(buffering=0) as names:
            names.write(b"".join(os.fsencode(path) + b"\n" for path in self.names))
            names.seek(0)
            yield names


@dataclass
class Stream:
    """Lines that are decoded as they come, and written in their order.

    Attributes:
        is_numbered: whether a text says which line it belongs to.
        has_summary: whether the cost is said in the end.
    """

    worker: Worker
    lines: Lines
    writer: OrderedWriter
    progress: Progress
    is_numbered: bool
    has_summary: bool

    def run(self) -> int:
        """Decode the input, one run after another, until it ends; returns the exit code."""
        try:
            while not self.lines.has_ended:
                for answer in self.worker.stream(self.lines.run(), self.lines.num_lines):
                    self.progress.add(answer)
                    self.writer.add(answer.result.index, answer.text)
        # the reader of the output has gone
        except click.exceptions.Exit:
            raise
        except BaseException:
            self._finish(is_interrupted=True)
            raise
        self._finish(is_interrupted=False)
        return 1 if self.progress.has_failed else 0

    def _finish(self, *, is_interrupted: bool) -> None:
        gaps = self.writer.finish(is_numbered=self.is_numbered)
        self.progress.close()
        if gaps and self.is_numbered:
            self.progress.warn(
                f"interrupted; not finished: {describe_lines(gaps, self.progress.item)}"
            )
        elif is_interrupted:
            self.progress.warn(
                f"interrupted; the output ends with {self.progress.item} {self.writer.num_written}; give "
                "what is behind it to go on, or use --output-dir, which goes on by itself"
            )
        if self.lines.error is not None:
            self.progress.fail(self.lines.error)
        if self.has_summary:
            click.echo(self.progress.summary(self.worker.num_steps), err=True)


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
