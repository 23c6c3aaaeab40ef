"""A recording of ten minutes, from samples to text, beside faster-whisper.

The recording is noise, in which no voice activity is heard, so all systems get the same cuts: one every 30
seconds. Sequential windows see the text before them, up to 223 tokens; batched ones see none, and 16 of
them are decoded at a time. Every window has the same number of tokens, all of them words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.whisper_networks import END, VOCAB_SIZE, Whisper

RATE, WINDOW_SECONDS = 16000, 30
WIDTH, BATCH = 5, 16
DTYPES = ("float32", "int8")
# EOS, timestamps, and all that is no word
SUPPRESSED = list(range(END, VOCAB_SIZE))
# one search, in which no window is tried again or skipped
SEARCH: dict = dict(
    language="en",
    beam_size=WIDTH,
    temperature=0.0,
    compression_ratio_threshold=None,
    log_prob_threshold=None,
    no_speech_threshold=None,
    suppress_tokens=SUPPRESSED,
    without_timestamps=True,
)


def long_recordings(setup: Setup, networks: Mapping[str, Whisper]) -> Iterator[list[Task]]:
    """Seconds and real-time factors of a recording, by the way through its windows."""
    num_windows, num_new = (2, 4) if setup.is_tiny else (20, 64)
    generator = np.random.default_rng(0)
    noise = 0.1 * generator.standard_normal(num_windows * WINDOW_SECONDS * RATE, np.float32)
    for name, network in networks.items():
        for windows in ("batched", "sequential"):
            made = systems(setup, network, windows, noise, num_new)
            yield in_turn(f"{name}, ten minutes, {windows}", made, repeats=2)


def systems(
    setup: Setup, network: Whisper, windows: str, noise: np.ndarray, num_new: int
) -> dict[str, Callable]:
    found: dict[str, Callable] = {}
    for dtype in DTYPES:
        found[f"faster-whisper {dtype}"] = lambda dtype=dtype: Theirs(
            setup, network, dtype, windows, noise, num_new
        )
        found[f"pybeam {dtype}"] = lambda dtype=dtype: Ours(network, dtype, windows, noise, num_new)
    return found


class FixedLength:
    """CTranslate2's model, whose outputs have the same length behind every prompt."""

    def __init__(self, model, num_new: int) -> None:
        self._model, self._num_new = model, num_new

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def generate(self, features, prompts, **options):
        # half of it is for the output, and no more than a prompt leaves but for its last token
        before = max(map(len, prompts)) - 1
        options["max_length"] = self._num_new + max(self._num_new, before)
        return self._model.generate(features, prompts, **options)


class Recorded:
    """A run over the recording."""

    def __init__(self, noise: np.ndarray) -> None:
        self._noise = noise

    def columns(self, timed: Timed) -> dict:
        return {"real-time factor": timed.seconds * RATE / len(self._noise)}


class Theirs(Recorded):
    """`WhisperModel.transcribe`, or that of its batched pipeline."""

    def __init__(
        self,
        setup: Setup,
        network: Whisper,
        dtype: str,
        windows: str,
        noise: np.ndarray,
        num_new: int,
    ) -> None:
        import faster_whisper

        super().__init__(noise)
        model = faster_whisper.WhisperModel(
            str(network.converted_directory),
            device="cpu",
            compute_type=dtype,
            cpu_threads=setup.threads,
        )
        model.model = FixedLength(model.model, num_new)
        self._options = dict(SEARCH)
        self._transcribe = model.transcribe
        if windows == "batched":
            self._transcribe = faster_whisper.BatchedInferencePipeline(model).transcribe
            starts = range(0, len(noise) // RATE, WINDOW_SECONDS)
            cuts = [{"start": start, "end": start + WINDOW_SECONDS} for start in starts]
            self._options |= dict(batch_size=BATCH, clip_timestamps=cuts)

    def __call__(self) -> list[list[int]]:
        segments, _ = self._transcribe(self._noise, **self._options)
        return [list(segment.tokens) for segment in segments]


class Ours(Recorded):
    """`Transcriber.transcribe`."""

    def __init__(
        self, network: Whisper, dtype: str, windows: str, noise: np.ndarray, num_new: int
    ) -> None:
        super().__init__(noise)
        options = pybeam.TranscriptionOptions(
            language="en",
            windows="batched" if windows == "batched" else "sequential",
            timestamps=False,
            temperatures=(0.0,),
            compression_ratio_threshold=None,
            log_prob_threshold=None,
            no_speech_threshold=None,
            suppress_tokens=SUPPRESSED,
            max_new_tokens=num_new,
        )
        self._transcriber = pybeam.Transcriber(
            network.loaded(dtype),
            network.directory,
            options,
            algorithm=pybeam.speech.whisper.beam_search(WIDTH),
            schedule=pybeam.Fifo(BATCH),
        )

    def __call__(self) -> list[list[int]]:
        [transcript] = self._transcriber.transcribe([self._noise])
        return [list(segment.tokens) for segment in transcript.segments]
