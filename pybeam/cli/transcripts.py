"""One run of `pybeam transcribe` with a Whisper model: recordings in, transcripts out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pybeam.cli import signals
from pybeam.cli.files import open_output
from pybeam.cli.loading import Setup
from pybeam.cli.options.errors import EXPECTED, as_failures
from pybeam.cli.options.whisper import WhisperOptions
from pybeam.cli.output import OrderedWriter
from pybeam.cli.transcript_files import FolderWriter, LineWriter, stem_of

if TYPE_CHECKING:
    from torch import Tensor

    from pybeam.speech.sound import SoundFile
    from pybeam.speech.voice_activity import VoiceActivity
    from pybeam.speech.whisper import Progress, Recording, Transcriber, TranscriptionOptions


@dataclass(frozen=True)
class Transcripts:
    """Recordings that become transcripts.

    Attributes:
        setup: model, search and device.
        names: the recordings; an empty name is an empty recording.
        output_path: where all transcripts are written, one behind the other; or
        output_dir: the folder in which each has a file.
        options: of Whisper models.
        language, task: those of the command line.
        quiet: whether only errors and warnings are said.
    """

    setup: Setup
    names: tuple[str, ...]
    output_path: str
    output_dir: str | None
    options: WhisperOptions
    language: str | None
    task: str | None
    quiet: bool

    def run(self) -> int:
        """Transcribe everything; returns the exit code."""
        self._check()
        most = self.setup.algorithm.search.max_length
        options = self.options.transcription(self.language, self.task, most)
        rules = self.options.speech_rules()
        transcriber = self._transcriber(options)
        with as_failures(), contextlib.ExitStack() as stack:
            activity = None
            if rules is not None:
                from pybeam.speech.voice_activity import VoiceActivity

                activity = VoiceActivity(rules)
            writer = stack.enter_context(self._writer())
            progress = SoundProgress(self.names, has_summary=not self.quiet)
            stack.callback(progress.close)
            sounds = Sounds(self.names, transcriber.sampling_rate, activity, progress.warn)
            stack.enter_context(signals.ending_in_order())
            self._transcribe(transcriber, sounds, writer, progress)
        return 1 if progress.has_failed else 0

    def _transcribe(
        self,
        transcriber: Transcriber,
        sounds: Sounds,
        writer: FolderWriter | LineWriter,
        progress: SoundProgress,
    ) -> None:
        try:
            for news in transcriber.stream(sounds):
                progress.add(news)
                writer.add(news)
        # the reader of the output has gone
        except click.exceptions.Exit:
            raise
        except BaseException:
            progress.finish(is_interrupted=True)
            raise
        progress.finish(is_interrupted=False)

    def _check(self) -> None:
        forms = self.options.forms
        if self.output_dir is not None and self.output_path != "-":
            raise click.UsageError("give either --output or --output-dir, not both")
        if self.output_dir is not None:
            self._check_names()
        elif len(forms) > 1:
            raise click.UsageError("several --format need --output-dir, where each has a file")
        elif forms and forms[0] in ("srt", "vtt", "tsv") and len(self.names) > 1:
            raise click.UsageError(
                f"--format {forms[0]} of several recordings needs --output-dir, where each has a file"
            )

    def _check_names(self) -> None:
        stems = Counter(map(stem_of, self.names))
        for name in self.names:
            if stems[stem_of(name)] > 1:
                raise click.UsageError(
                    f"several recordings would be written to {stem_of(name)!r} in --output-dir, {name} among "
                    "them; transcribe them into folders of their own"
                )

    def _transcriber(self, options: TranscriptionOptions) -> Transcriber:
        from pybeam.speech.whisper import Transcriber

        algorithm = self.setup.build_transcript_search(self.setup.load_tokenizer())
        model = self.setup.load_model()
        with as_failures():
            return Transcriber(
                model,
                self.setup.first_dir,
                options,
                algorithm=algorithm,
                schedule=self.setup.schedule,
                backend=self.setup.device.backend,
            )

    @contextlib.contextmanager
    def _writer(self) -> Iterator[FolderWriter | LineWriter]:
        if self.output_dir is not None:
            folder = FolderWriter(Path(self.output_dir), self.names, self.options.forms)
            with contextlib.closing(folder):
                yield folder
            return
        with open_output(self.output_path) as file:
            form = self.options.forms[0] if self.options.forms else None
            yield LineWriter(OrderedWriter(file.fileno()), form)


@dataclass(frozen=True)
class Sounds:
    """The recordings, read when their turn comes. One that cannot be read fails alone."""

    names: tuple[str, ...]
    sampling_rate: int
    activity: VoiceActivity | None
    warn: Callable[[str], None]

    def __iter__(self) -> Iterator[Recording]:
        from pybeam.speech.whisper import Recording

        for name in self.names:
            sound = self._sound(name)
            try:
                stretches = None if self.activity is None else self.activity(sound)
            except EXPECTED as error:
                yield Recording(partial(_fail, error), id=name)
            else:
                yield Recording(sound, stretches=stretches, id=name)

    def _sound(self, name: str) -> Tensor | SoundFile:
        import torch

        from pybeam.speech.sound import SoundFile

        if not name:
            return torch.zeros(0)
        return SoundFile(name, self.sampling_rate, warn=self.warn)


def _fail(error: Exception) -> Tensor:
    raise error


class SoundProgress:
    """Count seconds of sound while they are transcribed, and show the user how many there are."""

    def __init__(self, names: tuple[str, ...], *, has_summary: bool) -> None:
        from tqdm import tqdm

        from pybeam.speech.sound import sound_seconds

        has_bar = has_summary and sys.stderr.isatty()
        self._names, self._has_summary = names, has_summary
        self._bar = tqdm(
            total=round(sum(map(sound_seconds, names)), 1) if has_bar else None,
            unit="s",
            unit_scale=True,
            file=sys.stderr,
            disable=not has_bar,
            dynamic_ncols=True,
        )
        self._start = time.perf_counter()
        self._position: dict[int, float] = {}
        self._num_done = 0
        self.has_failed = False

    def add(self, news: Progress) -> None:
        """Take the news of a recording."""
        if news.error is not None:
            self.has_failed = True
            self._say(f"error: file {news.index + 1}: {news.error}")
            return
        position = news.duration if news.transcript is not None else news.position
        self._bar.update(position - self._position.get(news.index, 0.0))
        self._position[news.index] = position
        self._num_done += news.transcript is not None

    def warn(self, message: str) -> None:
        """Say what may be wrong with a recording that is transcribed."""
        self._say(f"warning: {message}")

    def finish(self, *, is_interrupted: bool) -> None:
        """Say what was done."""
        self.close()
        if is_interrupted:
            left = len(self._names) - self._num_done
            self._say(f"warning: interrupted; {left:,} files are not finished")
        if self._has_summary:
            click.echo(self._summary(), err=True)

    def close(self) -> None:
        self._bar.close()

    def _summary(self) -> str:
        sound, passed = sum(self._position.values()), time.perf_counter() - self._start
        factor = f"; real-time factor {passed / sound:.3f}" if sound else ""
        return f"{self._num_done:,} files, {sound:,.1f} s of sound in {passed:.1f} s{factor}"

    def _say(self, message: str) -> None:
        self._bar.write(f"pybeam: {message}", file=sys.stderr)
