"""Windows that a small Whisper learns from: recordings of clips, and the tokens that it must write."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.speech.spoken_verses import RATE, Clip, Recording, recording
from examples.speech.whisper_layout import (
    ENGLISH,
    EOS,
    LATEST_START_SECONDS,
    MAX_TOKENS,
    NO_SPEECH,
    NO_TIMES,
    PREVIOUS,
    START,
    TRANSCRIBE,
    WINDOW_SECONDS,
    time_token,
)
from pybeam.speech import WhisperFeatureExtractor

BATCH = 8
IGNORED = -1  # a target that is none
PROMPT_SHARE, SILENT_SHARE, TIMES_SHARE = 0.25, 0.02, 0.5
# windows whose features are 0 behind the recording, as the last one of a long recording's are
ENDING_SHARE = 0.5
MOST_CLIPS = 12  # they fill every window
MANY_SHARE = 0.6  # of batches with several clips in a window, which come when single ones are known
ALIKE = 10  # single clips of a batch are from one of so many ranges of lengths
FRAME = 160  # samples from one to the next


class Example(NamedTuple):
    samples: Tensor  # [n], of at most a window
    inputs: list[int]
    targets: list[int]
    pieces: list[int]  # of its phrases alone; none if one of them is cut
    sounds: list[int]


class Material:
    """Clips, and all that makes examples of them.

    Args:
        clips: spoken phrases, each in one voice or several.
        tokenizer: spells them.
        seed: of all that is drawn.
    """

    def __init__(self, clips: list[Clip], tokenizer: Tokenizer, seed: int) -> None:
        self.clips = sorted(clips, key=lambda clip: len(clip.samples))
        self.rng = random.Random(seed)
        self._tokenizer = tokenizer
        self._by_text = {clip.text: clip for clip in clips}
        names = sorted({name for clip in clips for name in clip.sounds})
        self.sound_ids = {name: i for i, name in enumerate(names)}

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(" " + text, add_special_tokens=False).ids

    def batch(self, progress: float) -> tuple[list[Example], Tensor]:
        """Examples of about the same length, longer ones later, and their features [B, E, F].

        Args:
            progress: the share of the training that is over.
        """
        rng = self.rng
        if rng.random() < min(MANY_SHARE, 3 * max(0, progress - 0.1)):
            num = rng.choice([2, 3, MOST_CLIPS, MOST_CLIPS])
            chosen = [rng.choices(self.clips, k=num) for _ in range(BATCH)]
        else:
            size = len(self.clips) // ALIKE
            first = rng.randrange(len(self.clips) - size)
            chosen = [[rng.choice(self.clips[first : first + size])] for _ in range(BATCH)]
        batch = [self.example([] if rng.random() < SILENT_SHARE else some) for some in chosen]
        # at last mostly whole windows, with the silence that fills them
        most = WINDOW_SECONDS * RATE
        if rng.random() > (0.03 if progress < 0.75 else 0.25):
            behind = round(rng.uniform(0.02, 0.4) * RATE)
            most = min(most, max(len(one.samples) for one in batch) + behind)
        # a shorter window has the same frames
        extract = extractor(math.ceil(most / RATE))
        num_frames = most // FRAME // 2 * 2
        features = [extract(one.samples)[:num_frames] for one in batch]
        for own, one in zip(features, batch, strict=True):
            if rng.random() < ENDING_SHARE:
                own[-(-len(one.samples) // FRAME) :] = 0
        return batch, torch.stack([masked(own, rng) for own in features])

    def example(self, some: list[Clip]) -> Example:
        """A window of these clips, as far as they fit into it."""
        rng = self.rng
        heard = recording(some, rng, seconds=WINDOW_SECONDS)
        previous = self._previous() if rng.random() < PROMPT_SHARE else []
        has_times = heard.cut is not None or rng.random() < TIMES_SHARE
        inputs, targets = self.tokens(heard, previous, has_times)
        pieces, sounds = [], []
        # the spelling of a cut phrase is not known
        if heard.cut is None:
            for _, _, text in heard.phrases:
                pieces += self.encode(text)
                sounds += [self.sound_ids[name] for name in self._by_text[text].sounds]
        return Example(heard.samples, inputs, targets, pieces, sounds)

    def tokens(
        self, heard: Recording, previous: list[int], has_times: bool
    ) -> tuple[list[int], list[int]]:
        """Inputs and targets of the decoder; prompt, task and mode are given, and no targets.

        With timestamps, a phrase that is cut is its beginning alone, and silence is 0.00 alone.
        """
        body: list[int] = []
        for start, end, text in heard.phrases:
            if not body:
                start = min(start, LATEST_START_SECONDS)
            spelled = self.encode(text)
            body += [time_token(start), *spelled, time_token(end)] if has_times else spelled
        is_silent = not heard.phrases and heard.cut is None
        if heard.cut is not None:
            body.append(time_token(heard.cut))
        if is_silent and has_times:
            body.append(time_token(0))
        prompt = [PREVIOUS, *previous] if previous else []
        mode = [] if has_times else [NO_TIMES]
        inputs = [*prompt, START, ENGLISH, TRANSCRIBE, *mode, *body]
        targets = [IGNORED] * len(prompt) + [NO_SPEECH if is_silent else ENGLISH]
        targets += [IGNORED] * (1 + len(mode)) + [*body, EOS]
        return inputs[:MAX_TOKENS], targets[:MAX_TOKENS]

    def _previous(self) -> list[int]:
        """The text of an earlier window, with or without its timestamps."""
        found: list[int] = []
        place, has_times = 0.0, self.rng.random() < TIMES_SHARE
        for clip in self.rng.choices(self.clips, k=self.rng.randint(1, 6)):
            spelled, end = self.encode(clip.text), place + len(clip.samples) / RATE
            found += [time_token(place), *spelled, time_token(end)] if has_times else spelled
            place = end % WINDOW_SECONDS
        return found[-(MAX_TOKENS // 2 - 1) :]


@cache
def extractor(seconds: int) -> WhisperFeatureExtractor:
    """The extractor of Whisper for windows of so many seconds."""
    return WhisperFeatureExtractor(chunk_length=seconds)


def masked(features: Tensor, rng: random.Random) -> Tensor:
    """Hide a stretch of time and a band of frequencies (SpecAugment, Park et al. 2019)."""
    for dim, most in ((0, 20), (1, 10)):
        width = rng.randint(0, most)
        start = rng.randint(0, features.shape[dim] - width)
        features.narrow(dim, start, width).zero_()
    return features
