"""One run of `pybeam transcribe` with a Whisper model: recordings in, transcripts out."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pybeam.cli import signals
from pybeam.cli.files import OrderedWriter, open_output
from pybeam.cli.options.declare import refuse
from pybeam.cli.options.errors import EXPECTED, as_failures
from pybeam.cli.options.whisper import WhisperOptions
from pybeam.cli.progress import SoundProgress
from pybeam.cli.run import Run, follow
from pybeam.cli.transcript_files import FolderWriter, LineWriter, stem_of

if TYPE_CHECKING:
    from torch import Tensor

    from pybeam import ctc
    from pybeam.cli.loading import Setup
    from pybeam.speech.sound import SoundFile
    from pybeam.speech.voice_activity import VoiceActivity
    from pybeam.speech.whisper import Progress, Recording, Transcriber, TranscriptionOptions

    AnyTranscriber = Transcriber | ctc.Transcriber

# options that are about sound and files
OF_SOUND = {"forms", "has_vad", "vad_threshold", "vad_min_silence", "vad_padding"}


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
        rules = self.whisper.speech_rules()
        transcriber = self._transcriber(language, task)
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

    def _transcriber(self, language: str | None, task: str | None) -> AnyTranscriber:
        most = self.run.setup.algorithm.max_length
        return load_transcriber(self.run.setup, self.whisper.transcription(language, task, most))

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


class CtcTranscripts(Transcripts):
    """The same with a model of CTC, which has few options."""

    def _transcriber(self, language: str | None, task: str | None) -> AnyTranscriber:
        from pybeam import ctc

        setup, reason = self.run.setup, "is for models with a decoder, but --model has none"
        of_whisper = {field.name for field in fields(self.whisper)} - OF_SOUND
        refuse(self.whisper, of_whisper, reason)
        refuse(
            setup.algorithm, {field.name for field in fields(setup.algorithm)} - {"width"}, reason
        )
        refuse(self.run.form, ("has_scores", "is_json"), f"{reason}; --format json has scores")
        for flag, value in (("--language", language), ("--task", task)):
            if value is not None:
                raise click.UsageError(f"{flag} {reason}")
        if setup.device.threads is not None:
            import torch

            torch.set_num_threads(setup.device.threads)
        width, device = setup.algorithm.width or 1, setup.device
        if isinstance(width, tuple):
            raise click.UsageError(f"--width must be one number for a model of CTC, but is {width}")
        if self.run.corpus.output_dir is not None and not self.whisper.forms:
            raise click.UsageError("--output-dir needs --format for a model of CTC")
        with as_failures():
            model = ctc.load_model(
                setup.first_dir, device.device, device.dtype, backend=device.backend
            )
            return ctc.Transcriber(model, setup.first_dir, width=width, backend=device.backend)


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
