"""`pybeam transcribe`: sound files in, transcriptions out."""

from __future__ import annotations

from typing import Any

import click

from pybeam.cli import signals
from pybeam.cli.job import Command, RecordingFiles
from pybeam.cli.options import files
from pybeam.cli.options.algorithm import SECTIONS, AlgorithmOptions
from pybeam.cli.options.corpus import corpus_section
from pybeam.cli.options.sections import Section, SectionCommand, option, take
from pybeam.cli.options.speed import SPEED
from pybeam.cli.translate import FORM, check_form

FILES = Section(
    "Files",
    [
        files.MODELS,
        option(
            "--input",
            "input_paths",
            multiple=True,
            metavar="FILE",
            default=["-"],
            show_default=False,
            type=click.Path(allow_dash=True),
            help="Names of WAV files, one per line, if none are given as arguments; `-` or nothing: "
            "stdin. With --output-dir also a folder, whose .wav files are taken by name.",
        ),
        files.OUTPUT,
        option(
            "--language",
            metavar="CODE",
            help="The spoken language, such as en, for Whisper models of many languages.",
        ),
        option(
            "--task",
            type=click.Choice(["transcribe", "translate"]),
            show_default="transcribe",
            help="translate: into English, by Whisper models of many languages.",
        ),
    ],
)


@click.command(
    cls=SectionCommand,
    short_help="Transcribe sound files.",
    sections=[FILES, corpus_section("name of the recording"), *SECTIONS, SPEED, FORM],
)
@click.argument("names", metavar="[WAV]...", nargs=-1, type=click.Path())
def transcribe(**values: Any) -> int:
    """Transcribe WAV files with a speech model that is loaded from DIR.

    The files must be 16-bit PCM with one channel, at the sampling rate of the model
    (`preprocessor_config.json`). Transcriptions come out in the order of the files, each as soon as it
    and all before it are known; a file that cannot be read leaves an empty line. With --n-best 2
    or more, each hypothesis is a line `file ||| transcription ||| score`, files counted from 0.
    Speech2Text models need the package kaldi-native-fbank (`pip install 'pybeam-search[speech]'`). Whisper
    models take files of 30 seconds at most and write no timestamps.

    \b
    Examples:
      pybeam transcribe --model examples/models/spoken-numbers-en examples/speech/*.wav
      pybeam transcribe --model DIR --input recordings --output-dir OUT
      ls *.wav | pybeam transcribe --model DIR --output out.txt
      pybeam transcribe --model DIR --language de --task translate a.wav
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
    from pybeam.corpus import Transcribe

    if values["names"] and values["input_paths"] != ("-",):
        raise click.UsageError("give WAV files either as arguments or through --input, not both")
    check_form(values)
    options = dict(values)
    algorithm = AlgorithmOptions.take(values)
    task = take(Transcribe, values)
    return Command.take(options, values, algorithm, RecordingFiles, task).run()
