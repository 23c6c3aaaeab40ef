"""The arguments of faster-whisper become options and a search of pybeam."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pybeam.arguments import ArgumentError
from pybeam.compat.faster_whisper.repetitions import SpokenNgrams, SpokenPenalty
from pybeam.compat.faster_whisper.results import TranscriptionOptions
from pybeam.processors.base import Processor
from pybeam.search.algorithms import Algorithm
from pybeam.speech import whisper
from pybeam.speech.transcript import Stretch

# programs set the level of this one
log = logging.getLogger("faster_whisper")

NAMES = {one.name for one in fields(TranscriptionOptions)}
# options that have the same name here
SAME = NAMES & {one.name for one in fields(whisper.TranscriptionOptions)}


def options_of(given: dict[str, Any], **changes: Any) -> TranscriptionOptions:
    """Return the options among the arguments of a call, with some changes."""
    temperature = given["temperature"]
    if not isinstance(temperature, list | tuple):
        temperature = [temperature]
    asked = {name: given[name] for name in NAMES if name in given}
    return TranscriptionOptions(**asked | {"temperatures": temperature} | changes)


def own_options(
    options: TranscriptionOptions, language: str | None, task: str | None, **changes: Any
) -> whisper.TranscriptionOptions:
    """Return the options under their names here.

    Args:
        options: as faster-whisper has them.
        language, task: None for a model of English alone.
        changes: options of pybeam.
    """
    asked = {name: getattr(options, name) for name in SAME} | {
        "language": language,
        "task": task,
        "timestamps": not options.without_timestamps,
        "words": options.word_timestamps,
        # an empty text is none
        "hotwords": options.hotwords or None,
        "suppress_tokens": options.suppress_tokens or (),
    }
    if not options.word_timestamps:
        asked["hallucination_silence_threshold"] = None
    asked |= changes
    prompt = asked["initial_prompt"]
    if prompt is not None and not isinstance(prompt, str):
        asked["initial_prompt"] = list(prompt)
    return whisper.TranscriptionOptions(**asked)


def search_of(options: TranscriptionOptions, start: int, no_timestamps: int) -> Algorithm:
    """Return the search at temperature 0; `start` and `no_timestamps` are the ends of the control tokens."""
    search = whisper.beam_search(
        options.beam_size, patience=options.patience, length_penalty=options.length_penalty
    )
    chain: list[Processor] = []
    if options.repetition_penalty != 1:
        penalty = options.repetition_penalty
        chain.append(SpokenPenalty(penalty, start=start, no_timestamps=no_timestamps))
    if options.no_repeat_ngram_size:
        size = options.no_repeat_ngram_size
        chain.append(SpokenNgrams(size, start=start, no_timestamps=no_timestamps))
    return replace(search, processors=tuple(chain))


def clips_of(given: str | Sequence[float], duration: float) -> list[Stretch]:
    """Return the parts of a recording that `clip_timestamps` names.

    Raises:
        ValueError: they are no numbers, or not in the order of time.
    """
    try:
        seconds = [
            float(one)
            for one in (given.split(",") if isinstance(given, str) else given)
            if one != ""
        ]
    except (TypeError, ValueError) as error:
        problem = f"must be seconds joined by commas, or a list of them, but is {given!r}"
        raise ArgumentError("clip_timestamps", problem) from error
    seconds = seconds or [0.0]
    if seconds != sorted(seconds):
        raise ArgumentError("clip_timestamps", f"must be in the order of time, but is {given!r}")
    if len(seconds) % 2:
        seconds.append(duration)
    pairs = zip(seconds[::2], seconds[1::2], strict=True)
    return [Stretch(start, end) for start, end in pairs if start < end]
