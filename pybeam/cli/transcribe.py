"""`pybeam transcribe`: sound files in, what is said in them out."""

from __future__ import annotations

import click

from pybeam.cli.job import TranscribeJob
from pybeam.cli.search_options import (
    ScheduleOptions,
    SearchOptions,
    build_algorithm,
    build_schedule,
    take,
)
from pybeam.cli.sections import SectionCommand, option
from pybeam.cli.translate import translate

# options of `pybeam translate` that say something else here
OWN = ("input_path", "source_lang", "target_lang")

files = option("Files")


@click.command(cls=SectionCommand, short_help="Transcribe sound files.")
@click.argument("paths", metavar="[WAV]...", nargs=-1, type=click.Path())
@files(
    "--input",
    "input_path",
    metavar="FILE",
    default="-",
    type=click.Path(allow_dash=True),
    help="Names of WAV files, one per line, if none are given as arguments; `-` or nothing: stdin.",
)
@files(
    "--language",
    metavar="CODE",
    help="What is spoken, for Whisper models of many languages, such as en.",
)
@files(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    show_default="transcribe",
    help="translate: into English, by Whisper models of many languages.",
)
def transcribe(**values) -> int:
    """Transcribe WAV files with a speech model that was loaded from DIR.

    The files must be 16-bit PCM with one channel, at the sampling rate of the model
    (`preprocessor_config.json`). Transcriptions come out in the order of the files, each as soon as it
    and all before it are known; a file that cannot be read leaves an empty line. With --n-best 2
    or more, each hypothesis is a line `file ||| transcription ||| score`, files counted from 0.
    Speech2Text models need the package kaldi-native-fbank (`pip install 'pybeam[speech]'`). Whisper
    models take files of 30 seconds at most and write no timestamps.

    \b
    Examples:
      pybeam transcribe --model examples/models/spoken-numbers-en a.wav b.wav
      ls *.wav | pybeam transcribe --model DIR --output out.txt
      pybeam transcribe --model DIR --language de --task translate a.wav
      pybeam transcribe --model DIR --width 3 --temperature 1.25 --eos-penalty 0.9 \\
          --scoring gnmt:0.6 --n-best 3 a.wav

    \b
    Exit codes:
      0    every file was transcribed
      1    a file failed (the others are there), or the model or a package is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written
      141  the reader of the output went away
    """
    if values["paths"] and values["input_path"] != "-":
        raise click.UsageError("give WAV files either as arguments or through --input, not both")
    algorithm = build_algorithm(take(SearchOptions, values))
    schedule = build_schedule(take(ScheduleOptions, values))
    return TranscribeJob(algorithm, schedule, source_lang=None, target_lang=None, **values).run()


_shared = [parameter for parameter in translate.params if parameter.name not in OWN]
_paths, _input, *_spoken = transcribe.params
transcribe.params = [_paths, _shared[0], _input, _shared[1], *_spoken, *_shared[2:]]
