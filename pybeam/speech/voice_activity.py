"""Find the stretches of a recording in which somebody speaks, with Silero's model and ONNX Runtime."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.speech.sound import SoundFile
from pybeam.speech.transcript import Stretch

RATE = 16000
# samples that the model judges at once, and of those before them that it sees again
FRAME, CONTEXT = 512, 64
# frames of a call of the model, 16 seconds
FRAMES_AT_ONCE = 512
# a pause that is long enough to cut at, where a stretch must be cut
SHORT_PAUSE = 0.098
INSTALL = "`pip install 'pybeam-search[vad]'`"


@dataclass(frozen=True)
class SpeechRules:
    """Which frames become stretches; the rules and the defaults of faster-whisper. All times are seconds.

    Args:
        threshold: a stretch begins with a frame whose probability of speech is at least this.
        silence_threshold: a pause begins with a frame below this; None: `threshold` - 0.15, at least 0.01.
        min_speech: shorter stretches are dropped.
        max_speech: longer ones are cut, at the latest pause of a tenth of a second if there is one.
        min_silence: a stretch ends at a pause of this length.
        padding: added on both sides of each stretch. Two that would meet share the pause.

    Raises:
        ValueError: a number is out of range.
    """

    threshold: float = 0.5
    silence_threshold: float | None = None
    min_speech: float = 0.0
    max_speech: float = math.inf
    min_silence: float = 2.0
    padding: float = 0.4

    def __post_init__(self) -> None:
        for name in ("threshold", "silence_threshold"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ArgumentError(name, f"must be a probability between 0 and 1, but is {value}")
        for name in ("min_speech", "min_silence", "padding"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(
                    name, f"must be 0 or more seconds, but is {getattr(self, name)}"
                )
        least = 2 * self.padding + FRAME / RATE
        if not self.max_speech > least:
            raise ArgumentError(
                "max_speech",
                f"must be more than padding takes, {least} s, but is {self.max_speech}",
            )


class VoiceActivity:
    """Say where in a recording somebody speaks.

    Silero's model gives each 32 ms a probability of speech; `SpeechRules` make stretches of them.

    Args:
        rules: see `SpeechRules`.

    Raises:
        ImportError: a package is missing.
    """

    def __init__(self, rules: SpeechRules | None = None) -> None:
        self.rules = rules or SpeechRules()
        self._session = _session()

    def __call__(self, samples: Tensor | SoundFile) -> list[Stretch]:
        """Return the stretches of samples [n] float32, from -1 to 1, at 16 kHz, or of a file."""
        probabilities, num_samples = self._judged(samples)
        return stretches(probabilities, num_samples, self.rules)

    def probabilities(self, samples: Tensor | SoundFile) -> np.ndarray:
        """Return the probability [ceil(n / 512)] that somebody speaks in each 512 samples."""
        return self._judged(samples)[0]

    def _judged(self, samples: Tensor | SoundFile) -> tuple[np.ndarray, int]:
        """Return the probabilities, and how many samples there are."""
        blocks = [samples] if isinstance(samples, Tensor) else samples.blocks()
        # each frame is judged with the end of the one before it
        waiting = np.zeros(CONTEXT, np.float32)
        hidden = cell = np.zeros((1, 1, 128), np.float32)
        found, num_samples = [np.zeros(0, np.float32)], 0
        for block in itertools.chain(blocks, [None]):
            if block is None:
                waiting = np.pad(waiting, (0, (CONTEXT - len(waiting)) % FRAME))
            else:
                num_samples += len(block)
                waiting = np.concatenate((waiting, block.numpy()))
            while num := min(FRAMES_AT_ONCE, (len(waiting) - CONTEXT) // FRAME):
                if block is not None and num < FRAMES_AT_ONCE:
                    break
                frames = [waiting[i * FRAME : (i + 1) * FRAME + CONTEXT] for i in range(num)]
                given = {"input": np.stack(frames), "h": hidden, "c": cell}
                values, hidden, cell = self._session.run(["speech_probs", "hn", "cn"], given)
                found.append(values.reshape(-1))
                waiting = waiting[num * FRAME :]
        return np.concatenate(found), num_samples


def stretches(
    probabilities: Sequence[float] | np.ndarray, num_samples: int, rules: SpeechRules
) -> list[Stretch]:
    """Return the stretches of a recording at 16 kHz whose frames of 512 samples have these probabilities."""
    found = _cut(probabilities, num_samples, rules)
    _pad(found, int(num_samples), RATE * rules.padding)
    return [Stretch(start / RATE, end / RATE) for start, end in found if start < end]


def _cut(
    probabilities: Sequence[float] | np.ndarray, num_samples: int, rules: SpeechRules
) -> list[list[int]]:
    """Return start and end of each stretch without padding. Places are samples; 0 stands for no place."""
    lower = rules.silence_threshold
    silence = max(rules.threshold - 0.15, 0.01) if lower is None else lower
    min_speech, min_silence = RATE * rules.min_speech, RATE * rules.min_silence
    longest = RATE * rules.max_speech - FRAME - 2 * RATE * rules.padding
    found: list[list[int]] = []
    start: int | None = None
    # the pause that may end the stretch; the latest one at which it may be cut; where it went on
    pause = cut = resumed = 0
    for place, probability in zip(
        itertools.count(0, FRAME), map(float, probabilities), strict=False
    ):
        is_speech = probability >= rules.threshold
        if is_speech and pause:
            pause = 0
            resumed = place if resumed < cut else resumed
        if start is None:
            start = place if is_speech else None
            continue
        if place - start > longest:
            found.append([start, cut or place])
            may_go_on = cut > 0
            start = resumed if may_go_on and resumed >= cut else None
            pause = cut = resumed = 0
            if not may_go_on:
                continue
        if probability >= silence or start is None:
            continue
        pause = pause or place
        if place - pause > RATE * SHORT_PAUSE:
            cut = pause
        if place - pause >= min_silence:
            if pause - start > min_speech:
                found.append([start, pause])
            start, pause, cut, resumed = None, 0, 0, 0
    if start is not None and num_samples - start > min_speech:
        found.append([start, num_samples])
    return found


def _pad(found: list[list[int]], num_samples: int, padding: float) -> None:
    """Widen stretches in place; two that would meet share what lies between them."""
    if not found:
        return
    found[0][0] = int(max(0, found[0][0] - padding))
    found[-1][1] = int(min(num_samples, found[-1][1] + padding))
    for one, other in itertools.pairwise(found):
        silence = other[0] - one[1]
        own = silence // 2 if silence < 2 * padding else padding
        one[1] = int(min(num_samples, one[1] + own))
        other[0] = int(max(0, other[0] - own))


def _session() -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(f"voice activity needs the package onnxruntime: {INSTALL}") from error
    options = runtime.SessionOptions()
    # a frame is too little work for two threads
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(_model_file()), options, providers=["CPUExecutionProvider"])


def _model_file() -> Path:
    """Find the model in the package silero-vad, which is not imported: it would import torchaudio."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        raise ImportError(f"voice activity needs the package silero-vad: {INSTALL}")
    return Path(package.submodule_search_locations[0], "data", "silero_vad_16k_sequence.onnx")
