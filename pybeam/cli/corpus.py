"""A corpus from the command line: which executor, and what the user sees of the run."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import fields
from typing import Any

import click

from pybeam.cli.options.corpus import (
    PART_LINES,
    PART_RECORDINGS,
    ClusterOptions,
    CorpusOptions,
)
from pybeam.cli.options.errors import as_failures, as_usage_errors
from pybeam.cli.options.files import FileOptions
from pybeam.cli.options.speed import ScheduleOptions
from pybeam.cli.options.whisper import WhisperOptions
from pybeam.cli.ray import connected
from pybeam.corpus import Corpus, Executor, FinishedPart, Here, Job, Run
from pybeam.corpus.executors import Plan, Processes, best_plan
from pybeam.corpus.run import Listener, Summary
from pybeam.platforms.system import can_fork, usable_cores
from pybeam.text.counts import counted

# options that change no result, or that the manifest knows from elsewhere
UNCOMPARED = {
    one.name
    for kind in (FileOptions, CorpusOptions, ClusterOptions, ScheduleOptions, WhisperOptions)
    for one in fields(kind)
} - {"column", "target_column"}
UNCOMPARED |= {"model_dirs", "revision", "names", "threads", "check_finite", "quiet"}
# between two lines of progress, where there is no terminal
SECONDS = 30.0


def compared() -> dict[str, Any]:
    """Return those options of the present command that may change a result, by their flags."""
    context = click.get_current_context()
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return {flags[name]: value for name, value in context.params.items() if name not in UNCOMPARED}


def run_corpus(
    job: Job, corpus: Corpus, options: CorpusOptions, cluster: ClusterOptions, *, is_quiet: bool
) -> int:
    """Decode a corpus into a folder; returns the exit code."""
    assert options.output_dir is not None
    default = PART_RECORDINGS if job.task.takes_sound else PART_LINES
    progress = Progress(job.task.item, is_quiet=is_quiet)
    context = connected(cluster.address) if cluster.on_ray else contextlib.nullcontext()
    with as_failures(), context:
        run = Run(
            options.output_dir,
            job,
            corpus,
            part_lines=options.part_lines or default,
            shard=options.shard or (1, 1),
            force=options.force,
            listener=progress,
        )
        try:
            summary = run.execute(
                lambda num_parts: _executor(job, options, cluster.on_ray, num_parts)
            )
        except KeyboardInterrupt:
            progress.note("interrupted; start again to go on")
            raise
    progress.summarise(summary)
    return 0


def _executor(job: Job, options: CorpusOptions, on_ray: bool, num_parts: int) -> Executor:
    if on_ray:
        from pybeam.ray.executor import RayExecutor

        with as_usage_errors():
            return RayExecutor(job, options.processes or None)
    if options.processes is not None:
        if options.processes:
            plan = Plan(options.processes, job.threads or 1)
        else:
            cores = job.threads or usable_cores()
            plan = best_plan(num_parts, cores) if can_fork() else Plan(1, cores)
        if plan.processes > 1:
            with as_failures():
                return Processes(job, plan.processes, plan.threads)
        job = job.with_threads(plan.threads)
    model = job.load()
    with as_usage_errors():
        return Here(job.worker(model))


class Progress(Listener):
    """Says how a run goes on stderr: one line that changes on a terminal, else a line now and then."""

    def __init__(self, item: str, *, is_quiet: bool) -> None:
        self._item, self._is_quiet = item, is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._start = self._said = time.monotonic()
        self._num_lines = self._num_tokens = 0
        self._begin: float | None = None  # the share of the input that was read when work began
        self._share = 0.0

    def note(self, message: str) -> None:
        self.say(f"pybeam: {message}", is_last=True)

    def beginning(self, share: float) -> None:
        self._begin = self._share = share
        self._start = time.monotonic()
        if self._is_terminal and not self._is_quiet:
            self.say("the first part is being decoded", is_last=False)

    def going_on(self, num_parts: int, num_lines: int) -> None:
        if not self._is_quiet:
            lines = counted(num_lines, self._item)
            self.note(f"going on behind {counted(num_parts, 'part')} ({lines})")

    def finished(self, part: FinishedPart, share: float) -> None:
        self._num_lines += part.counts.lines
        self._num_tokens += part.counts.tokens
        self._share = max(self._share, share)
        now = time.monotonic()
        if self._is_quiet or not (self._is_terminal or now - self._said >= SECONDS):
            return
        self._said = now
        seconds = max(now - self._start, 1e-9)
        self.say(
            f"part {part.index}: {counted(self._num_lines, self._item)}, "
            f"{counted(self._num_tokens, 'token')}, "
            f"{self._num_lines / seconds:.1f} {self._item}s/s, {self._left(seconds)} left "
            f"({self._share:.0%})",
            is_last=False,
        )

    def summarise(self, summary: Summary) -> None:
        """Say what was done, and what the folder has."""
        counts = summary.counts
        seconds = max(time.monotonic() - self._start, 1e-9)
        if not self._is_quiet:
            reasons = ", ".join(
                f"{name} {num:,}" for name, num in counts.stop_reasons.most_common()
            )
            self.say(
                f"{counted(counts.lines, self._item)} in {seconds:.1f} s "
                f"({counts.lines / seconds:.1f} {self._item}s/s); {counted(counts.tokens, 'token')}, "
                f"{counted(counts.steps, 'step')}, {counted(counts.expansions, 'expansion')}\n"
                f"stopped by: {reasons or 'nothing to do'}\nthe folder has "
                f"{counted(summary.num_parts, 'part')}, {counted(summary.num_lines, self._item)}",
                is_last=True,
            )
        if summary.num_failed:
            failed = counted(summary.num_failed, self._item)
            self.note(f"{failed} failed; errors.jsonl says why")
        if counts.warned:
            have = "has" if counts.warned == 1 else "have"
            self.note(f"{counted(counts.warned, self._item)} {have} warnings in errors.jsonl")

    def say(self, text: str, *, is_last: bool) -> None:
        """Write to stderr. On a terminal the next text takes the place of one that is not the last."""
        if self._is_terminal:
            text = "\r\x1b[K" + text
        end = "\n" if is_last or not self._is_terminal else ""
        click.echo(text + end, err=True, nl=False)

    def _left(self, seconds: float) -> str:
        done = self._share - (self._begin or 0.0)
        if done <= 0:
            return "?"
        left = round(seconds * (1 - self._share) / done)
        return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
