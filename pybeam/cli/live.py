"""One run of `pybeam transcribe --live`: sound that comes on stdin, and segments that settle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from pybeam.cli import signals
from pybeam.cli.files import OrderedWriter, open_output, standard_input
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.whisper import WhisperOptions
from pybeam.cli.run import Run
from pybeam.cli.transcripts import load_transcriber

# bytes of raw sound that are taken at once; as many as are there, if that is less
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class LiveTranscript:
    """A stream of sound that becomes a transcript.

    Attributes:
        run: the options that all runs have.
        whisper: options of Whisper models.
    """

    run: Run
    whisper: WhisperOptions

    def execute(self, language: str | None, task: str | None) -> int:
        """Transcribe until the sound ends; returns the exit code."""
        from pybeam.speech.transcript import Transcript, TranscriptWriter
        from pybeam.speech.voice_activity import VoiceActivity

        form = self._form()
        options = self.whisper.transcription(language, task, self.run.setup.algorithm.max_length)
        rules = self.whisper.speech_rules()
        transcriber = load_transcriber(self.run.setup, options)
        with as_failures(), open_output(self.run.files.output_path) as file:
            activity, asked = VoiceActivity(rules), self._sound()
            writer, output = TranscriptWriter(form), OrderedWriter(file.fileno())
            with signals.ending_in_order():
                for segment in transcriber.live(activity=activity, **asked):
                    output.more(0, writer.more([segment]))
                output.add(0, writer.end(Transcript(None, None, 0.0, ())))
        return 0

    def _form(self) -> str:
        """Return the form of what is written. Raises UsageError for options that do not fit."""
        if self.run.files.names not in ((), ("-",)) or self.run.files.input_paths != ("-",):
            raise click.UsageError("--live takes the sound on stdin; leave other names out")
        if self.run.corpus.output_dir is not None:
            raise click.UsageError("--live writes to stdout or --output; leave --output-dir out")
        forms = self.whisper.forms or ("txt",)
        if len(forms) > 1:
            raise click.UsageError("--live writes one --format")
        if forms[0] == "json":
            raise click.UsageError(
                "--format json is one object, which ends with the sound; take jsonl"
            )
        return forms[0]

    def _sound(self) -> dict[str, Any]:
        """Return the arguments of `Transcriber.live` that say what comes on stdin."""
        from pybeam.speech.pcm import wav_chunks

        if self.whisper.live == "wav":
            rate, chunks = wav_chunks(standard_input("--live"), "stdin")
            return {"chunks": chunks, "rate": rate}
        return {
            "chunks": _read(standard_input("--live").fileno()),
            "rate": self.whisper.rate,
            "encoding": self.whisper.live,
        }


def _read(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, MOST_BYTES):
        yield chunk
