"""One run of `pybeam translate`, `score`, `retrieve` or `transcribe`: lines in, texts out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from pybeam.cli import signals
from pybeam.cli.files import OrderedWriter, count_lines, open_input, open_output
from pybeam.cli.loading import Setup
from pybeam.cli.options.corpus import ClusterOptions, CorpusOptions
from pybeam.cli.options.declare import take
from pybeam.cli.options.errors import as_failures, as_usage_errors
from pybeam.cli.options.files import FileOptions, FormOptions

if TYPE_CHECKING:
    from pybeam.cli.progress import LineProgress
    from pybeam.cli.sources import Lines
    from pybeam.corpus import Answer, Corpus, Job, Task, Worker
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Files(FileOptions):
    """The files of a command. `names` are recordings, in place of files that name them."""

    names: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, tuple[str, ...]]:
        """Return the files whose lines stand beside those of the input, behind their flag."""
        if self.phrase_paths:
            return "--must-contain", self.phrase_paths
        return "--target", self.target_paths

    def check_corpus(self) -> None:
        """Raise UsageError for files that a run in parts cannot have."""
        if self.output_path != "-":
            raise click.UsageError("give either --output or --output-dir, not both")
        if not self.names and "-" in self.input_paths:
            raise click.UsageError(
                "--output-dir needs --input FILE, which is read again when the run goes on after a kill; "
                "stdin cannot be"
            )
        if "-" in self.target_paths:
            raise click.UsageError("--output-dir needs --target FILE; stdin cannot be read again")

    def corpus(self, options: CorpusOptions) -> Corpus:
        """Return the lines of a run in parts."""
        from pybeam.corpus.readers import Corpus, Names

        if self.names:
            return Names(self.names)
        return Corpus(
            self.input_paths,
            targets=self.beside[1],
            column=options.column,
            target_column=options.target_column,
        )

    @contextlib.contextmanager
    def input(self) -> Iterator[BinaryIO]:
        """Open the input of a run that is no corpus."""
        if self.names:
            with tempfile.TemporaryFile(buffering=0) as names:
                names.write(b"".join(os.fsencode(path) + b"\n" for path in self.names))
                names.seek(0)
                yield names
            return
        if len(self.input_paths) > 1:
            raise click.UsageError(
                "several --input need --output-dir; or join the files with `cat`"
            )
        with open_input(self.input_paths[0]) as file:
            yield file

    @contextlib.contextmanager
    def lines(self, input_file: BinaryIO) -> Iterator[Lines]:
        """Return the lines of the open input, with those of the file beside it, if there is one."""
        from pybeam.cli.sources import LineReader, Lines

        reader = LineReader(input_file.fileno())
        flag, paths = self.beside
        if not paths:
            yield Lines(reader)
            return
        if len(paths) > 1:
            raise click.UsageError(f"give one {flag} FILE; several need --output-dir")
        with open_input(paths[0], flag) as file:
            yield Lines(reader, LineReader(file.fileno()), flag)


@dataclass(frozen=True)
class Run:
    """One run, as a command line asks for it.

    Attributes:
        setup: models, search and device.
        files: what is read and written.
        form: the form of what is written.
        corpus, cluster: how a corpus is decoded in parts.
    """

    setup: Setup
    files: Files
    form: FormOptions
    corpus: CorpusOptions
    cluster: ClusterOptions

    @classmethod
    def take(cls, values: dict[str, Any]) -> Run:
        """Take all that the `values` of a command line hold.

        Raises UsageError for options that contradict each other.
        """
        form, setup = take(FormOptions, values), Setup.take(values)
        corpus, cluster = take(CorpusOptions, values), take(ClusterOptions, values)
        run = cls(setup, take(Files, values), form, corpus, cluster)
        assert not values, "these options would be ignored"
        return run

    def execute(self, task: Task) -> int:
        """Do the task for every line; returns the exit code."""
        self.corpus.check(self.cluster)
        if self.corpus.output_dir is None:
            return self._stream(task)
        from pybeam.cli.corpus import run_corpus

        self.files.check_corpus()
        job = self._job(task, self._algorithm(task, self.setup.load_tokenizer()))
        with as_failures():
            lines = self.files.corpus(self.corpus)
        with signals.ending_in_order():
            return run_corpus(job, lines, self.corpus, self.cluster, is_quiet=self.form.quiet)

    def _stream(self, task: Task) -> int:
        from pybeam.cli.progress import LineProgress
        from pybeam.corpus.tasks import writes_many

        with contextlib.ExitStack() as stack:
            input_file = stack.enter_context(self.files.input())
            tokenizer = self.setup.load_tokenizer()
            algorithm = self._algorithm(task, tokenizer)
            worker = self._worker(task, tokenizer, algorithm)
            output_file = stack.enter_context(open_output(self.files.output_path, input_file))
            is_shown = not self.form.quiet
            progress = LineProgress(
                task.item,
                count_lines(input_file),
                has_bar=is_shown and sys.stderr.isatty() and not output_file.isatty(),
                has_summary=is_shown,
            )
            stack.callback(progress.close)
            lines = stack.enter_context(self.files.lines(input_file))
            writer = OrderedWriter(output_file.fileno())
            is_numbered = self.form.is_json or writes_many(algorithm)
            stack.enter_context(signals.ending_in_order())
            Stream(worker, lines, writer, progress, is_numbered).run()
        return 1 if progress.has_failed else 0

    def _algorithm(self, task: Task, tokenizer: Tokenizer) -> Algorithm:
        with as_failures():
            processors = task.processors(self.setup.first_dir)
        return self.setup.build_algorithm(tokenizer, processors)

    def _job(self, task: Task, algorithm: Algorithm) -> Job:
        from pybeam.cli.corpus import compared
        from pybeam.corpus import Form, Job

        setup, form = self.setup, self.form
        return Job(
            setup.folders,
            algorithm,
            task,
            Form(form.has_scores, form.is_json, form.has_alignment),
            setup.schedule,
            **vars(setup.device),
            source_lang=setup.source_lang,
            target_lang=setup.target_lang,
            memory=self.corpus.cache or 0,
            options=compared(),
            without=setup.algorithm.without,
        )

    def _worker(self, task: Task, tokenizer: Tokenizer, algorithm: Algorithm) -> Worker:
        """Return a worker that reads few lines ahead, so that texts come out soon and steadily."""
        schedule = dataclasses.replace(self.setup.schedule, window=2 * self.setup.schedule.n)
        job = dataclasses.replace(self._job(task, algorithm), schedule=schedule)
        with as_failures():
            model = job.load()
        with as_usage_errors():
            return job.worker(model, tokenizer)


@dataclass
class Stream:
    """Lines that are decoded as they come, and written in their order.

    Attributes:
        is_numbered: whether a text says which line it belongs to.
    """

    worker: Worker
    lines: Lines
    writer: OrderedWriter
    progress: LineProgress
    is_numbered: bool

    def run(self) -> None:
        """Decode the input, one run of lines after another, until it ends."""
        follow(self._answers(), self._add, self._finish)

    def _answers(self) -> Iterator[Answer]:
        while not self.lines.has_ended:
            yield from self.worker.stream(self.lines.run(), self.lines.num_lines)

    def _add(self, answer: Answer) -> None:
        self.progress.add(answer)
        self.writer.add(answer.result.index, answer.text)

    def _finish(self, is_interrupted: bool) -> None:
        progress = self.progress
        gaps = self.writer.finish(is_numbered=self.is_numbered)
        progress.close()
        if gaps and self.is_numbered:
            progress.warn(f"interrupted; not finished: {describe_lines(gaps, progress.item)}")
        elif is_interrupted:
            progress.warn(
                f"interrupted; the output ends with {progress.item} {self.writer.num_written}; give "
                "what is behind it to go on, or use --output-dir, which goes on by itself"
            )
        if self.lines.error is not None:
            progress.fail(self.lines.error)
        progress.num_steps = self.worker.num_steps
        progress.summarise()


def follow(news: Iterable[T], add: Callable[[T], None], finish: Callable[[bool], None]) -> None:
    """Take news as they come. `finish` is told whether something ended them before their time."""
    try:
        for one in news:
            add(one)
    # the reader of the output has gone
    except click.exceptions.Exit:
        raise
    except BaseException:
        finish(True)
        raise
    finish(False)


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
