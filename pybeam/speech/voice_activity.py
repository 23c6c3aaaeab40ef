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
        judge, num_samples = self.judge(), 0
        found = []
        for block in blocks:
            num_samples += len(block)
            found.append(judge.more(block.numpy()))
        return np.concatenate([*found, judge.end()]), num_samples

    def judge(self, frames_at_once: int = FRAMES_AT_ONCE) -> FrameJudge:
        """Return what judges the frames of a recording, `frames_at_once` in a call of the model."""
        return FrameJudge(self._session, frames_at_once)


class FrameJudge:
    """Gives frames of 512 samples their probabilities of speech, while the sound comes.

    Each frame is judged with the end of the one before it, and with what the model keeps of all before.

    Args:
        session: Silero's model.
        frames_at_once: frames of a call of the model.
    """

    def __init__(self, session: Any, frames_at_once: int) -> None:
        self._session, self._most = session, frames_at_once
        self._waiting = np.zeros(CONTEXT, np.float32)
        self._hidden = self._cell = np.zeros((1, 1, 128), np.float32)

    def more(self, samples: np.ndarray) -> np.ndarray:
        """Return the probabilities of the next frames, so many at once that are there as a whole."""
        self._waiting = np.concatenate((self._waiting, samples))
        size = self._most * FRAME
        num_calls = (len(self._waiting) - CONTEXT) // size
        return self._judged([self._most] * num_calls)

    def end(self) -> np.ndarray:
        """Return the probabilities of the frames that are left; zeros fill the last one."""
        left = len(self._waiting) - CONTEXT
        self._waiting = np.pad(self._waiting, (0, -left % FRAME))
        num = -(-left // FRAME)
        return self._judged([num] if num else [])

    def _judged(self, nums: Sequence[int]) -> np.ndarray:
        found = [np.zeros(0, np.float32)]
        for num in nums:
            waiting = self._waiting
            frames = [waiting[i * FRAME : (i + 1) * FRAME + CONTEXT] for i in range(num)]
            given = {"input": np.stack(frames), "h": self._hidden, "c": self._cell}
            values, self._hidden, self._cell = self._session.run(
                ["speech_probs", "hn", "cn"], given
            )
            found.append(values.reshape(-1))
            self._waiting = waiting[num * FRAME :]
        return np.concatenate(found)


def stretches(
    probabilities: Sequence[float] | np.ndarray, num_samples: int, rules: SpeechRules
) -> list[Stretch]:
    """Return the stretches of a recording at 16 kHz whose frames of 512 samples have these probabilities."""
    finder = StretchFinder(rules)
    for probability in probabilities:
        finder.add(float(probability))
    finder.end(num_samples)
    _pad(finder.found, int(num_samples), RATE * rules.padding)
    return [Stretch(start / RATE, end / RATE) for start, end in finder.found if start < end]


class StretchFinder:
    """Finds stretches without padding, frame by frame. Places are samples; 0 stands for no place.

    Args:
        rules: which frames become stretches.

    Attributes:
        found: start and end of each stretch that has ended.
        start: of the stretch that goes on; None: there is none.
        place: where the next frame begins.
    """

    def __init__(self, rules: SpeechRules) -> None:
        lower = rules.silence_threshold
        self._threshold = rules.threshold
        self._silence = max(rules.threshold - 0.15, 0.01) if lower is None else lower
        self._min_speech, self._min_silence = RATE * rules.min_speech, RATE * rules.min_silence
        self._longest = RATE * rules.max_speech - FRAME - 2 * RATE * rules.padding
        self.found: list[list[int]] = []
        self.start: int | None = None
        self.place = 0
        # the pause that may end the stretch; the latest one at which it may be cut; where it went on
        self._pause = self._cut = self._resumed = 0

    def add(self, probability: float) -> None:
        """Take the probability of the next frame."""
        place = self.place
        self.place += FRAME
        is_speech = probability >= self._threshold
        if is_speech and self._pause:
            self._pause = 0
            self._resumed = place if self._resumed < self._cut else self._resumed
        if self.start is None:
            self.start = place if is_speech else None
            return
        if place - self.start > self._longest:
            self.found.append([self.start, self._cut or place])
            may_go_on = self._cut > 0
            self.start = self._resumed if may_go_on and self._resumed >= self._cut else None
            self._pause = self._cut = self._resumed = 0
            if not may_go_on:
                return
        if probability >= self._silence or self.start is None:
            return
        self._pause = self._pause or place
        if place - self._pause > RATE * SHORT_PAUSE:
            self._cut = self._pause
        if place - self._pause >= self._min_silence:
            if self._pause - self.start > self._min_speech:
                self.found.append([self.start, self._pause])
            self.start = None
            self._pause = self._cut = self._resumed = 0

    def end(self, num_samples: int) -> None:
        """End the stretch that goes on where the recording ends."""
        if self.start is not None and num_samples - self.start > self._min_speech:
            self.found.append([self.start, num_samples])
        self.start = None

    @property
    def is_certain(self) -> bool:
        """Whether the stretch that goes on will be found, however it ends."""
        if self.start is None:
            return False
        return (self._pause or self.place) - self.start > self._min_speech


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
