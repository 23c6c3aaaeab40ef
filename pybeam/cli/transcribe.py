"""`pybeam transcribe`: sound files in, transcripts out."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from pybeam.cli import signals
from pybeam.cli.files import open_input, standard_input
from pybeam.cli.loading import model_folders
from pybeam.cli.options.corpus import PART_RECORDINGS, corpus_section
from pybeam.cli.options.declare import option, refuse, section, take
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.files import FileOptions, ModelOptions
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED
from pybeam.cli.options.whisper import WHISPER, WhisperOptions
from pybeam.cli.run import Run
from pybeam.cli.translate import FORM


@dataclass(frozen=True)
class Speech:
    """The fields of `pybeam.corpus.Transcribe`.

    Attributes:
        language: The spoken language, such as en, for Whisper models of many languages. Without it a
            transcript's language is detected.
        task: translate: into English, by Whisper models of many languages.
    """

    language: str | None = option("CODE", is_common=True)
    task: Literal["transcribe", "translate"] | None = option(shows="transcribe", is_common=True)


INPUT = (
    "Names of sound files, one per line, if none are given as arguments; `-` or nothing: stdin. Also a "
    "folder, whose sound files are taken by name."
)
COLUMN = "The column of .parquet files, or the field of .jsonl files, that has the name of the recording."
FILES = section(
    "Files",
    ModelOptions,
    FileOptions,
    Speech,
    names=["model_dirs", "revision", "input_paths", "output_path", "language", "task"],
    input_paths={"help": INPUT},
)
# a window of 30 seconds takes as much memory as hundreds of lines of text
WINDOWS_AT_ONCE = 16


@click.command(
    cls=SectionCommand,
    short_help="Transcribe sound files.",
    rare=("rate", "n_best", "max_length", "length_penalty", "is_json"),
    sections=[
        FILES,
        WHISPER,
        corpus_section(column={"help": COLUMN}, part_lines={"shows": str(PART_RECORDINGS)}),
        *SECTIONS,
        SPEED,
        FORM,
    ],
)
@click.argument("names", metavar="[SOUND]...", nargs=-1, type=click.Path())
def transcribe(**values: Any) -> int:
    """Transcribe sound files with a speech model that is loaded from a folder or the hub.

    WAV files with 16-bit samples, one channel and the model's sampling rate are read as they are. Other WAV
    files, FLAC, MP3, Ogg, AAC, MP4, MOV, Matroska and WebM are decoded and resampled, which needs the package
    av (`pip install 'pybeam-search[speech]'`). The name `-` is a recording on stdin.

    Each recording becomes a line, in the order of the files; one that cannot be read leaves an empty
    line. With --format, Whisper models write transcripts with times, to stdout or, with --output-dir, into
    a file for each recording. Segments are written as they settle. Recordings may last a day, and all of them
    share the batch. The search is that of faster-whisper, unless an option beside --width, --patience and
    --length-penalty asks for another. Models of CTC, such as Wav2Vec2, write the same with the times of
    words. They take the most probable token of each moment, or search with a prefix beam of --width.

    With --n-best 2 or more, --scores or --json, the hypotheses of the search are written, as lines
    `file ||| transcription ||| score`, files counted from 0, or as JSON. Whisper models then need --language
    and take 30 seconds at most. Without --format, --output-dir writes such lines in parts.

    With --live, sound is taken from stdin while it comes, and each segment is written when somebody has
    paused for half a second, or has spoken for 30 seconds. It may go on for ever: memory does not grow.

    \b
    Examples:
      pybeam transcribe --model spoken-numbers-en digits.wav
      pybeam transcribe --model openai/whisper-tiny talk.mp3
      pybeam transcribe --model openai/whisper-tiny --format srt film.mkv > film.srt
      pybeam transcribe --model DIR --format srt --format json --output-dir OUT *.flac
      pybeam transcribe --model DIR --timestamps word --format json - < talk.ogg
      pybeam transcribe --model DIR --vad --windows batched talk.mp3
      pybeam transcribe --model DIR --language de --task translate a.wav
      arecord -f S16_LE -r 16000 -t wav | pybeam transcribe --model DIR --live wav -
      ffmpeg -i URL -f s16le -ac 1 -ar 16000 - | pybeam transcribe --model DIR --live s16le -
      pybeam transcribe --model DIR --input recordings --output-dir OUT
      ls *.wav | pybeam transcribe --model DIR --output out.txt
      pybeam transcribe --model DIR --recipe fireredasr --width 3 --temperature 1.25 \\
          --length-penalty 0.6 --eos-penalty 0.9 --n-best 3 a.wav

    \b
    Exit codes:
      0    every file was transcribed
      1    a file failed (the others are there), or the model or a package is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written (143 and 129: the same after SIGTERM, SIGHUP)
      141  the reader of the output went away
    """
    signals.leave_at_once()
    if values["names"] and values["input_paths"] != ("-",):
        raise click.UsageError("give sound files either as arguments or through --input, not both")
    whisper, speech = take(WhisperOptions, values), take(Speech, values)
    if not values["names"] and len(values["input_paths"]) == 1:
        values["names"] = _in_folder(values["input_paths"][0])
    with contextlib.ExitStack() as stack:
        values["model_dirs"] = model_folders(values["model_dirs"], values["revision"])
        if whisper.live is None:
            _check_names(values["names"])
            values["names"] = _with_stdin(values["names"], stack)
        values["revision"] = None
        reason = _needs_hypotheses(values, whisper)
        is_ctc = _is_ctc(values["model_dirs"][0])
        if reason is None or is_ctc:
            return _transcripts(values, whisper, speech, is_ctc)
        refuse(whisper, None, reason)
        from pybeam.corpus import Transcribe

        return Run.take(values).execute(Transcribe(**vars(speech)))


def _needs_hypotheses(values: dict[str, Any], whisper: WhisperOptions) -> str | None:
    """Return why the hypotheses of the search are written, and no transcripts; None: they are not."""
    if not _is_whisper(values["model_dirs"][0]):
        return "is for Whisper models, but --model is another"
    asked = {
        "--n-best": (values["n_best"] or 1) > 1,
        "--samples": values["samples"] is not None,
        "--algorithm sample": values["algorithm"] == "sample",
        "--groups": (values["groups"] or 1) > 1,
        "--scores": values["has_scores"],
        "--json": values["is_json"],
        "--output-dir without --format": values["output_dir"] is not None and not whisper.forms,
    }
    for what, is_asked in asked.items():
        if is_asked:
            return f"is for transcripts, but {what} writes hypotheses of the search"
    return None


def _transcripts(
    values: dict[str, Any], whisper: WhisperOptions, speech: Speech, is_ctc: bool
) -> int:
    """Write transcripts of recordings of any length."""
    from pybeam.cli.transcripts import CtcTranscripts, Transcripts

    if values["batch_size"] is None and values["batch_tokens"] is None:
        values["batch_size"] = WINDOWS_AT_ONCE
    run = Run.take(values)
    reason = "is for --output-dir without --format, which writes parts"
    refuse(replace(run.corpus, output_dir=None), None, reason)
    refuse(run.cluster, None, reason)
    if whisper.live is not None and not is_ctc:
        from pybeam.cli.live import LiveTranscript

        return LiveTranscript(run, whisper).execute(speech.language, speech.task)
    names = run.files.names or _listed(run.files.input_paths)
    kind = CtcTranscripts if is_ctc else Transcripts
    return kind(run, names, whisper).execute(speech.language, speech.task)


def _in_folder(path: str) -> tuple[str, ...]:
    """Return the recordings in a folder; none if it is no folder."""
    if not os.path.isdir(path):
        return ()
    from pybeam.corpus.readers import recordings_in

    with as_failures():
        return tuple(recordings_in(path))


def _listed(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in files that have one in each line."""
    names: list[str] = []
    for path in paths:
        with open_input(path) as file:
            lines = file.read().split(b"\n")
        names += [os.fsdecode(line.strip()) for line in (lines if lines[-1] else lines[:-1])]
    return tuple(names)


def _check_names(names: tuple[str, ...]) -> None:
    """Raise ClickException where no file is there: an earlier output would be lost for nothing."""
    if names and not any(name == "-" or os.path.exists(name) for name in names):
        raise click.ClickException(f"{names[0]}: No such file or directory")


def _with_stdin(names: tuple[str, ...], stack: contextlib.ExitStack) -> tuple[str, ...]:
    """Return the names with that of a file, which lives as long as `stack`, in place of `-`."""
    if "-" not in names:
        return names
    if names.count("-") > 1:
        raise click.UsageError("`-` can be given once; there is one stdin")
    path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "stdin")
    with path.open("wb") as file:
        shutil.copyfileobj(standard_input("-"), file)
    return tuple(str(path) if name == "-" else name for name in names)


def _is_whisper(directory: str) -> bool:
    from pybeam.text.ctranslate2 import transformers_config

    try:
        config = transformers_config(Path(directory))
    except (OSError, ValueError):
        return False  # whoever loads the model says what is wrong
    return config.get("model_type") == "whisper"


def _is_ctc(directory: str) -> bool:
    from pybeam.tasks.loading import is_ctc

    return is_ctc(Path(directory))
