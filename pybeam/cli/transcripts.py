"""One run of `pybeam transcribe` with a Whisper model: recordings in, transcripts out."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pybeam.cli import signals
from pybeam.cli.files import OrderedWriter, open_output
from pybeam.cli.options.errors import EXPECTED, as_failures
from pybeam.cli.options.whisper import WhisperOptions
from pybeam.cli.progress import SoundProgress
from pybeam.cli.run import Run, follow
from pybeam.cli.transcript_files import FolderWriter, LineWriter, stem_of

if TYPE_CHECKING:
    from torch import Tensor

    from pybeam.cli.loading import Setup
    from pybeam.speech.sound import SoundFile
    from pybeam.speech.voice_activity import VoiceActivity
    from pybeam.speech.whisper import Progress, Recording, Transcriber, TranscriptionOptions


@dataclass(frozen=True)
class Transcripts:
    """Recordings that become transcripts, one behind the other or each in a file of its own.

    Attributes:
        run: the options that all runs have.
        names: the recordings; an empty name is an empty recording.
        whisper: options of Whisper models.
    """

    run: Run
    names: tuple[str, ...]
    whisper: WhisperOptions

    def execute(self, language: str | None, task: str | None) -> int:
        """Transcribe everything; returns the exit code."""
        self._check()
        most = self.run.setup.algorithm.max_length
        options = self.whisper.transcription(language, task, most)
        rules = self.whisper.speech_rules()
        transcriber = load_transcriber(self.run.setup, options)
        with as_failures(), contextlib.ExitStack() as stack:
            activity = None
            if rules is not None:
                from pybeam.speech.voice_activity import VoiceActivity

                activity = VoiceActivity(rules)
            writer = stack.enter_context(self._writer())
            progress = SoundProgress(self.names, has_summary=not self.run.form.quiet)
            stack.callback(progress.close)
            sounds = Sounds(self.names, transcriber.sampling_rate, activity, progress.warn)

            def add(news: Progress) -> None:
                progress.add(news)
                writer.add(news)

            stack.enter_context(signals.ending_in_order())
            follow(transcriber.stream(sounds), add, progress.finish)
        return 1 if progress.has_failed else 0

    def _check(self) -> None:
        output_dir = self.run.corpus.output_dir
        forms = self.whisper.forms
        if output_dir is not None and self.run.files.output_path != "-":
            raise click.UsageError("give either --output or --output-dir, not both")
        if output_dir is not None:
            self._check_names()
        elif len(forms) > 1:
            raise click.UsageError("several --format need --output-dir, where each has a file")
        elif forms and forms[0] in ("srt", "vtt", "tsv", "jsonl") and len(self.names) > 1:
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

    @contextlib.contextmanager
    def _writer(self) -> Iterator[FolderWriter | LineWriter]:
        forms, output_dir = self.whisper.forms, self.run.corpus.output_dir
        if output_dir is not None:
            folder = FolderWriter(Path(output_dir), self.names, forms)
            with contextlib.closing(folder):
                yield folder
            return
        with open_output(self.run.files.output_path) as file:
            yield LineWriter(OrderedWriter(file.fileno()), forms[0] if forms else None)


def load_transcriber(setup: Setup, options: TranscriptionOptions) -> Transcriber:
    """Load a Whisper model with the search that the command line asks for."""
    from pybeam.speech.whisper import Transcriber

    algorithm = setup.build_transcript_search(setup.load_tokenizer())
    model = setup.load_model()
    with as_failures():
        return Transcriber(
            model,
            setup.first_dir,
            options,
            algorithm=algorithm,
            schedule=setup.schedule,
            backend=setup.device.backend,
        )


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
