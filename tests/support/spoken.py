"""Sound that says itself how probable speech is, and a voice activity that reads it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pybeam.speech import SpeechRules, VoiceActivity, voice_activity
from pybeam.speech.voice_activity import CONTEXT, FRAME


class FrankModel:
    """In place of Silero's: the probability of a frame is its first sample.

    Attributes:
        num_frames: that were judged.
    """

    def __init__(self) -> None:
        self.num_frames = 0

    def run(self, names: list[str], given: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        frames = given["input"]
        assert frames.shape[1] == CONTEXT + FRAME
        self.num_frames += len(frames)
        return frames[:, CONTEXT], given["h"], given["c"]


def frank_activity(patch: pytest.MonkeyPatch, rules: SpeechRules) -> VoiceActivity:
    """Return a voice activity that believes the sound."""
    model = FrankModel()
    patch.setattr(voice_activity, "_session", lambda: model)
    return VoiceActivity(rules)


def sound_of(probabilities: np.ndarray, seed: int = 0) -> torch.Tensor:
    """Make noise [n] whose frames have these probabilities, the last one cut."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (len(probabilities), FRAME))
    noise[:, 0] = probabilities
    return torch.from_numpy(noise.astype(np.float32).reshape(-1)[: -FRAME // 3])


def random_probabilities(rng: np.random.Generator) -> np.ndarray:
    """Speech and silence in turns, with frames between the thresholds."""
    parts = [
        np.clip(rng.normal(level, 0.2, rng.integers(1, 60)), 0, 1)
        for level in rng.permutation([0.1, 0.9, 0.4] * 6)
    ]
    return np.concatenate(parts).astype(np.float32)


def chunks_of(whole: torch.Tensor, rng: np.random.Generator) -> list[torch.Tensor]:
    """Cut sound into chunks of 0 to 20,000 samples."""
    sizes = rng.integers(0, rng.choice([99, 2000, 20_000], 1000))
    places = np.cumsum(sizes)
    return list(whole.tensor_split(places[places < len(whole)].tolist()))
